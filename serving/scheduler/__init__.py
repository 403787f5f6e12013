"""Decides which requests run next and which run together; knows no model and no protocol."""
