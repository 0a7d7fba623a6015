"""How work is run on a node: one file per kind of run."""
