"""The floor everything stands on: what a job, a lease and an outcome are. No I/O but the clock."""
