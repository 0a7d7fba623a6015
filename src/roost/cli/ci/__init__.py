"""Pipelines of CI actions."""
