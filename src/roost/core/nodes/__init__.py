"""Nodes and pools: cordon, drain, maintenance, flaky nodes."""
