"""The page of a quantization."""
