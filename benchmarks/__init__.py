"""Measurements of this project beside its peers and the machine's limits."""
