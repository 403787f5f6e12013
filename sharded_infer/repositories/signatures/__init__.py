"""Signatures of versions: keys, stored signatures, and trust."""
