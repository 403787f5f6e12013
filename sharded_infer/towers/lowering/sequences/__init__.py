"""Fuses the operators of towers over sequences."""
