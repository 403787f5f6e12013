"""One module a command: its options, and what it prints. `serving/cli.py` puts them together."""
