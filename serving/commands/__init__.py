"""One module a command: its options and output. `serving/cli.py` assembles them."""
