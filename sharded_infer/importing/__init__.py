"""Import of externally trained models, and its checks."""
