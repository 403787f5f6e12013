"""Which versions are loaded, and which of them a name means."""
