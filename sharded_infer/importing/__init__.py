"""Imports models that others trained, and checks the import."""
