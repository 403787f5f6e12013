"""Trained modules, cut into tables and a tower."""
