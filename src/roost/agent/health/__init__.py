"""Health checks of services."""
