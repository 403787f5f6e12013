"""Reference towers."""
