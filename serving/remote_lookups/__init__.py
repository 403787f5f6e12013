"""Lookups that a front asks of shard hosts."""
