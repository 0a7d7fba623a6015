"""The decisions, pure: events and state in, changes and effects out. No clock, no I/O, no chance."""
