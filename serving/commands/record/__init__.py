"""The commands about recordings."""
