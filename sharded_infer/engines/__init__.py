"""Opened versions, and the engines that run their batches."""
