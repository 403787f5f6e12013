"""Executors and metrics of servers under load."""
