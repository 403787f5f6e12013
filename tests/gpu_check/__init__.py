"""What `make gpu-check` runs on a machine with a CUDA GPU: checks, measures and tunes."""
