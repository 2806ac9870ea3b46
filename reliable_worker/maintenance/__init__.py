"""Floor 4: expire, sweep, bury and count. Imports worker and below."""
