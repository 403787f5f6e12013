"""Lookup kernels: row formats, the fused operation, and its backends."""
