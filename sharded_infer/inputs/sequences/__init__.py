"""Sequences of a request: their inputs, and how a batch of them is laid out for the tower."""
