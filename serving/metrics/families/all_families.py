"""All metric families of a version, in the order of the page, and labels of their blocks."""

from serving.metrics.families.model_families import TABLE_FAMILIES
from serving.metrics.families.request_families import REQUEST_FAMILIES
from serving.metrics.families.tier_families import TIER_FAMILIES

MODEL_LABELS = ("model",)
VERSION_LABELS = ("model", "version")
VERSION_FAMILIES = (*REQUEST_FAMILIES, *TABLE_FAMILIES, *TIER_FAMILIES)
