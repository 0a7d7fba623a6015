"""The life of an instance: commands, node reports, node loss, restarts, assignments."""
