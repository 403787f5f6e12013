"""The commands: their options and output. `serving/cli.py` assembles them."""
