"""Which node: filters, scorers, strategies, and the nodes as columns."""
