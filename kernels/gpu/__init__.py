"""Lookups and passes of towers on GPUs, in Triton, with their references."""
