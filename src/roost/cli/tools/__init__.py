"""Simulation, benchmarks, stores and webhooks."""
