"""Logs of runs, from file to server."""
