"""Benchmarks that a user can run: the planner's speed and quality, TorchRec's beside it."""
