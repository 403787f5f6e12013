"""The gRPC API: its RPCs and the transports that carry them."""
