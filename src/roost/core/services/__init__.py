"""Services: replicas and rollouts."""
