"""Services: replicas, rolling updates, discovery."""
