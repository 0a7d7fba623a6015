"""Files of workloads on the leader: holds against garbage collection, sets that are complete, garbage collection."""
