"""Lookup messages between fronts and shard hosts."""
