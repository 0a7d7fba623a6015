"""The loop that decides: events, step, commit, effects."""
