"""Shard hosts: processes that answer lookups of one host of a plan."""
