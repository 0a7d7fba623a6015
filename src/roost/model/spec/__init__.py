"""What users write: workload documents, their blocks, units, names and rules."""
