"""The connection to a server: which server, identity, stream."""
