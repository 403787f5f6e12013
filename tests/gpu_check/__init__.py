"""What `make gpu-check` runs on a machine with a CUDA card: checks, measures and tunes."""
