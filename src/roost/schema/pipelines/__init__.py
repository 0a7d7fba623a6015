"""Pipelines over the API."""
