"""The benchmarks, as commands."""
