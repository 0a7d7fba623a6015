"""What commands share: sessions, output, exit codes."""
