"""Recordings of a server, replayed through the core."""
