"""The benchmarks' pictures."""
