"""Pipelines: files of actions that need each other, and the jobs they become."""
