"""Floor 7: a file per verb, no logic."""
