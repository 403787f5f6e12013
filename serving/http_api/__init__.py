"""The protocol over HTTP, and the limits of every HTTP connection."""
