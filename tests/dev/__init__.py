"""Tests of what demo, benchmarks and tests stand on."""
