"""Floor 3: claim, run and finish. Imports enqueue and below."""
