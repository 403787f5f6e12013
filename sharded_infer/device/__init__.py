"""Models on CUDA devices: tables, lookups, towers and the engine around them."""
