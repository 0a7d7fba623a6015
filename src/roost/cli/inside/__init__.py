"""Commands that reach into running instances."""
