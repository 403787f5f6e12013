"""Second scoring of answered requests, by shadow versions."""
