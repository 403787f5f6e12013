"""Passes over a sequence's positions: attention, and layers on pairs of position and candidate."""
