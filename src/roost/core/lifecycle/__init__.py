"""The life of a workload: submit, update, cancel, retry, schedules; adoption, restarts, retention."""
