"""Stored state of promotions."""
