"""What the documents show, run."""
