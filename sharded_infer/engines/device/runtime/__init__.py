"""Streams, events, graphs and pinned memory of GPUs; the simulated GPU."""
