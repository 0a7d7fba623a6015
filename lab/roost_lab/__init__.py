"""Benchmarks, chaos runs and readers of public traces: the extra `lab` installs them, no server imports them."""

import os

# What it runs shares files and programs with it, which no sandbox would see.
os.environ.setdefault("ROOST_AGENT_ISOLATION", "none")

__version__ = "0.1.0"
