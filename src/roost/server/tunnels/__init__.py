"""Tunnels into runs: between clients and the agents that open them. Bytes never pass the engine."""
