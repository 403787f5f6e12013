"""Counters of shadow versions."""
