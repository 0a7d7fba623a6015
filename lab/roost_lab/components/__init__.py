"""Servers that Roost works with, started privately for benchmarks, chaos runs and tests."""


class Missing(RuntimeError):
    """A program that is needed here is not installed; the message says what to do."""
