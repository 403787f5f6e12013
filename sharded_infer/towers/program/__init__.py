"""The stored program of a tower, read as untrusted input."""
