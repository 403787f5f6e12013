"""Models and requests of the benchmarks."""
