"""Pooled lookups on the host."""
