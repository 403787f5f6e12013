"""Samples in files: a model's inputs with labels and reference scores."""
