"""Dependencies between workloads, and the conditions they wait for."""
