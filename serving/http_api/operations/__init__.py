"""HTTP operations except predict calls."""
