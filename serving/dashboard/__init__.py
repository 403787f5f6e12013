"""The live page: a server's present state and last minutes."""
