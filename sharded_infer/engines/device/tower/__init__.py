"""A stored tower program, prepared for CUDA graphs."""
