"""Version routing of requests."""
