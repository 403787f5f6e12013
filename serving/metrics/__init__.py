"""The metrics and their Prometheus page."""
