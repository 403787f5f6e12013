"""Measurements that size machines."""
