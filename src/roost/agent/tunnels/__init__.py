"""Tunnels into the runs of this node: commands in them, and their ports."""
