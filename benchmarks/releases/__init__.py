"""Latency of a server while versions are released."""
