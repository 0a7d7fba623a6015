"""The simulated world: clock, network, hosts, clients, faults."""
