"""What `make bench` measures: one JSON line per figure, ratios within one run, CPU time of whole process trees."""
