"""The simulated world: the same core and agent on one heap with one seed."""
