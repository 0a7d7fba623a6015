"""Public and recorded traces: one file reads one format and replays it through the core."""
