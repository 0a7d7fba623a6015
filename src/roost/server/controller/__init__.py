"""The gRPC service for outside controllers."""
