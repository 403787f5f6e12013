"""Predict calls, independent of the transport."""
