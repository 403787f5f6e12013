"""Files read and written safely: locks, bounds, staging, TOML."""
