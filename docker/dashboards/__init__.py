"""Grafana dashboards of sharded-infer, as code."""
