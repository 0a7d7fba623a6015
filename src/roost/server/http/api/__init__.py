"""The REST API under /v1: one noun per file, handlers thin. Decode, ask the engine, encode."""
