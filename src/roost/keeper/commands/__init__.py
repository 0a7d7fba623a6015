"""Commands inside runs: a process that starts one with the user, namespaces and cgroups of its run, and ends it."""
