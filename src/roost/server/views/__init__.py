"""REST types made from the state."""
