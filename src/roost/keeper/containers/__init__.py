"""Containers of runs: the shim that follows one, and how the keeper ends it. Standard library only."""
