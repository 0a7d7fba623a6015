"""Chaos: real servers, agents and stores under faults, and checks of every answer that users get."""
