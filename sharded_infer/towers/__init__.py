"""Towers: exported, loaded, called."""
