"""Measurements inside this process."""
