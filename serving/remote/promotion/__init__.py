"""Moves a label step by step, while the figures of both versions allow it."""
