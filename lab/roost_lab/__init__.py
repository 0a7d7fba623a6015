"""Benchmarks, chaos runs and readers of public traces: the extra `lab` installs them, no server imports them."""

__version__ = "0.1.0"
