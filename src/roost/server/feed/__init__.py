"""The change feed and server-sent events."""
