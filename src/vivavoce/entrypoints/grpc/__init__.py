"""gRPC: translation only."""
