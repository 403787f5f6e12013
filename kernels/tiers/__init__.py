"""Rows that lie partly in memory and partly in files."""
