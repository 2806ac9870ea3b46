"""Benchmarks: what this worker does beside what PostgreSQL itself can do with the same statements.

Not tests: nothing here asserts a figure. Both sides run in turns on one server, so that a noisy
machine disturbs them alike; what counts is their ratio. Only the public API is used.
"""
