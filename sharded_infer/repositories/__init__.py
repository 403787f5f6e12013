"""Versions and labels, in folders and in object stores."""
