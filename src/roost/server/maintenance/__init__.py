"""Verification and backup of stores."""
