"""The server, its command line, and the demo."""
