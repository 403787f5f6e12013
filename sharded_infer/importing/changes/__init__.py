"""Rows that changed since a version was published, from whatever delivers them."""
