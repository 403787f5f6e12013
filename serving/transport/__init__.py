"""gRPC calls, carried by compiled code (`native/transport/`, `native/client/`)."""
