"""Towers split into a part per request and a part per pair."""
