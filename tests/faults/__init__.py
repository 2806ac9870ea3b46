"""Instruments that break things on purpose, and the tests that use them."""
