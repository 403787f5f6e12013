"""gRPC calls, carried by compiled code (`serving/native/transport/`, `serving/native/client/`)."""
