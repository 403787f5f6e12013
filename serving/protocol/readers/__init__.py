"""Bytes or tensors to a checked `ModelInput`: compiled, or by protobuf and NumPy."""
