"""Placement of table shards: topologies, costs, plans."""
