"""Publishing of versions from weights and towers."""
