"""The agents' gRPC service: sessions, orders, logs."""
