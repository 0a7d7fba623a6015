"""Templates: workload documents with typed parameters. Values are checked, and put in where they cannot change more."""
