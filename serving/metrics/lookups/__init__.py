"""Counters of a version's lookups and looked-up ids."""
