"""Measurements of running servers."""
