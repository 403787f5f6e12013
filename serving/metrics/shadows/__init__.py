"""Counters of versions that score beside the default version."""
