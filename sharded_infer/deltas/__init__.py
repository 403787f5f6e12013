"""Changed rows of a version, in front of the tables of its base."""
