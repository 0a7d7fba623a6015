"""The agent: runs on each node, carries out its assignment, and reports what happened."""
