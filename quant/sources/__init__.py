"""Trained weights, read a range of rows at a time."""
