"""Commands about workloads."""
