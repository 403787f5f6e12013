"""Predict calls on the wire, independent of sockets."""
