"""Order and batching of requests, independent of models and protocols."""
