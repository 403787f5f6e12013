"""Streams of predict requests: ModelStreamInfer."""
