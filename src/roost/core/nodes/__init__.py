"""Nodes and pools: reports of agents, cordon, drain, maintenance, flaky nodes."""
