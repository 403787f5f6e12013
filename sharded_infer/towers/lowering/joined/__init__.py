"""Passes of a request's stage, joined to one call."""
