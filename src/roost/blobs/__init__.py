"""Where bytes are kept: files by digest, and the logs of runs."""
