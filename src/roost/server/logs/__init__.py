"""Logs of runs: what is kept where, when a log is complete, and what readers get."""
