"""Slots: prepared processes in namespaces of their own, each of which serves the runs of one project one by one."""
