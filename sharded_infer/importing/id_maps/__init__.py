"""External id maps: raw ids and their rows, in chunks."""
