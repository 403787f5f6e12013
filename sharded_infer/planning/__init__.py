"""Where every shard of every table goes: topologies, costs, plans."""
