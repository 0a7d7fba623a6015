"""Benchmarks and readers of public traces: installed by the `lab` extra, imported by nothing in the server."""

__version__ = "0.1.0"
