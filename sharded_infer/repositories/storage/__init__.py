"""Object stores, and their cache on this machine."""
