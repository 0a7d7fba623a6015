"""What is stored: one file per kind of record."""
