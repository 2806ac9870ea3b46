"""Floor 2: putting jobs in. Imports postgres and below."""
