"""Names, labels and buckets of the metrics."""
