"""Loaded versions, and the names that refer to them."""
