"""Checks, measurements and tuning of `make gpu-check` on a machine with a CUDA GPU."""
