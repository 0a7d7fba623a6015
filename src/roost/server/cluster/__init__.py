"""Several servers on one store: election, leadership, forwarding."""
