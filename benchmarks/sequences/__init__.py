"""Servers of towers over histories: long ones beside short ones, and the user cache."""
