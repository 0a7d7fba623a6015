"""GPU fragmentation: how much room is left useless by a placement."""
