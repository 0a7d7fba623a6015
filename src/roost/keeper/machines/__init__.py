"""Virtual machines of runs: a supervisor for each, which starts its QEMU and speaks with it."""
