"""Requests that another version scores too, after they were answered."""
