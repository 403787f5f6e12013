"""The commands about a cluster."""
