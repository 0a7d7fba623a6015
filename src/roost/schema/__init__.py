"""REST types: one definition for server and client."""
