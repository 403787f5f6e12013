"""Which version answers a request."""
