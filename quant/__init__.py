"""Quantization: trained weights to stored rows."""
