"""Commands that make and inspect models offline."""
