"""Containers on a node: its engine, what it is to create for a run, and its images. Calls block."""
