"""A server's settings and their sources."""
