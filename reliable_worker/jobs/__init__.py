"""The floor everything stands on: what a job, a lease and an outcome are. Pure: no I/O but the clock."""
