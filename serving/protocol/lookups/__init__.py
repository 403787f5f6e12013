"""Messages of lookups between fronts and shard hosts."""
