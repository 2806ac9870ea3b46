"""Floor 1: HTTP/1.1 over h11 with a deadline and a limit on everything. Imports jobs only."""
