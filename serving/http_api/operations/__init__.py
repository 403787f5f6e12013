"""HTTP operations except predict calls: JSON to and from the control plane."""
