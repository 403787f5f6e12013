"""Pooled embeddings from the shards of a plan."""
