"""The commands about a repository."""
