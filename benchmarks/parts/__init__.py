"""Parts of a request or a publication, in one process."""
