"""Files of runs on a node: inputs are fetched before a run begins, outputs are collected when it has ended."""
