"""Models on GPUs: tables, lookups, towers and the engine around them."""
