"""Sequences of a request: their inputs, and their layout for the tower."""
