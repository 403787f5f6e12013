"""Rows changed since a version was published, read from several sources."""
