"""gRPC calls over the compiled transport."""
