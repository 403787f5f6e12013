"""Requests: checked, and merged into batches."""
