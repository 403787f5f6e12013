"""The gRPC API: RPCs and their transports."""
