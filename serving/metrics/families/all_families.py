"""All metric families, in the order of the page."""

from serving.metrics.families.family import Kind
from serving.metrics.families.model_families import LOAD_PHASES, MODEL_FAMILIES, TABLE_FAMILIES
from serving.metrics.families.request_families import (
    BATCH_REQUESTS_BOUNDARIES,
    BATCH_SAMPLES_BOUNDARIES,
    BLAMED,
    CODES,
    LATENCY_BOUNDARIES,
    PHASES,
    REFUSALS,
    REQUEST_FAMILIES,
)
from serving.metrics.families.sequence_families import SEQUENCE_FAMILIES
from serving.metrics.families.server_families import PAGE_FAMILIES, SERVER_FAMILIES
from serving.metrics.families.tier_families import TIER_FAMILIES

__all__ = [
    "BATCH_REQUESTS_BOUNDARIES",
    "BATCH_SAMPLES_BOUNDARIES",
    "BLAMED",
    "CODES",
    "LATENCY_BOUNDARIES",
    "LOAD_PHASES",
    "MODEL_FAMILIES",
    "MODEL_LABELS",
    "PAGE_FAMILIES",
    "PHASES",
    "REFUSALS",
    "SERVER_FAMILIES",
    "VERSION_FAMILIES",
    "VERSION_LABELS",
    "Kind",
]

MODEL_LABELS = ("model",)
VERSION_LABELS = ("model", "version")
VERSION_FAMILIES = (*REQUEST_FAMILIES, *TABLE_FAMILIES, *SEQUENCE_FAMILIES, *TIER_FAMILIES)
