"""Changed rows in, a version out; and whole versions of those."""
