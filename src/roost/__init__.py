"""Roost places work on machines, keeps it running, and can always say why."""

__version__ = "0.1.0"
