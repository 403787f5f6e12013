"""Logs, slow requests and traces."""
