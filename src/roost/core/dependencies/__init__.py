"""Dependencies between workloads, and schedules."""
