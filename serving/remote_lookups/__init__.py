"""A front's lookups on shard hosts."""
