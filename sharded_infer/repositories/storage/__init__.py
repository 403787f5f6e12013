"""Object stores and their local cache."""
