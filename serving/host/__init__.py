"""The machine and the process, independent of requests."""
