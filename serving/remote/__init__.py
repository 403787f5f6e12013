"""What commands do with a running server."""
