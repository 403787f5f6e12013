"""Id maps that others trained or wrote: raw ids and their rows, in chunks."""
