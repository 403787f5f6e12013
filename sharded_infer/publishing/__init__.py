"""Publishes versions from weights and towers."""
