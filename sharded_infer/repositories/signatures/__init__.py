"""Signatures of versions: keys, stored signatures, and which versions are trusted."""
