"""Peers of the benchmarks."""
