"""The project's style as tests: what a reader may rely on everywhere."""
