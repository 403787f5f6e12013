"""Wire formats of predict calls, independent of sockets."""
