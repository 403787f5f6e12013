"""Samples as people keep them, in files: a model's inputs with what is known of each sample."""
