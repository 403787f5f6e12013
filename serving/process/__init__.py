"""A server's processes: forking, readiness and draining."""
