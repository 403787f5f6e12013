"""Families of a shadow, a version that also scores requests of the default version."""

from serving.metrics.families.family import counter, histogram, largest
from serving.metrics.families.model_families import OUTPUT_PLACES, SCORE_BOUNDARIES
from serving.metrics.families.request_families import CODES, LATENCY_BOUNDARIES

BY_DEFAULT, BY_SHADOW = SCORERS = ("default", "shadow")
# full: too many waited for an idle slot. large: more samples than the version's max_batch.
# moved: the label or the default moved while it waited. shared_memory: its inputs are there,
# where the client may have changed them. default_rows: the default version was scored with default
# rows.
DROPS = ("full", "large", "moved", "shared_memory", "default_rows")
DIFFERENCE_BOUNDARIES = (
    0.0, 1e-6, 1e-5, 1e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0, 100.0,
)  # fmt: skip

SHADOWING = largest(
    "sharded_infer_shadowing",
    "1 for each version that scores a share of the default version's requests too (--shadow).",
    "Releases: whether the shadow's label has arrived, and differs from the default.",
)
SHADOW_REQUESTS = counter(
    "sharded_infer_shadow_requests",
    "Requests of the default version that this version has scored too, by gRPC status code.",
    "Releases: codes other than OK are requests that this version would have failed.",
    label="code",
    label_values=CODES,
    hidden_zeros=frozenset(CODES) - {"OK"},
)
SHADOW_DROPPED = counter(
    "sharded_infer_shadow_dropped_requests",
    "Requests that were chosen for this version and not scored. full: too many waited for an idle "
    "slot; large: more samples than its max_batch; moved: the label or the default has moved; "
    "shared_memory: inputs in shared memory; default_rows: rows of the answer were lost.",
    "Releases: what a comparison leaves out. No client notices.",
    label="reason",
    label_values=DROPS,
)
SHADOW_SECONDS = histogram(
    "sharded_infer_shadow_seconds",
    "Time of the lookups and the tower for the same requests, by the version that scored them; "
    "the default version's of the whole batch.",
    "Releases: whether the new version is slower.",
    label="scorer",
    label_values=SCORERS,
    boundaries=LATENCY_BOUNDARIES,
)
SHADOW_DIFFERENCE = histogram(
    "sharded_infer_shadow_score_difference",
    "Absolute differences between scores of this version and the default, by output; those that "
    "are no number or infinite are above all boundaries and not in the sum.",
    "Releases: sum over count is the mean difference.",
    label="output",
    label_values=OUTPUT_PLACES,
    boundaries=DIFFERENCE_BOUNDARIES,
)
SHADOW_LARGEST = largest(
    "sharded_infer_shadow_largest_score_difference",
    "The largest absolute difference between scores of this version and the default, by output, of "
    "this minute and the one before.",
    "Releases: a single request that is scored quite differently.",
    label="output",
    label_values=OUTPUT_PLACES,
)
SHADOW_SCORES = histogram(
    "sharded_infer_shadow_scores",
    "Scores of this version as a shadow, by output; without a sum, as scores may be negative.",
    "Releases: the largest distance from shadow_default_scores is the Kolmogorov-Smirnov "
    "statistic.",
    label="output",
    label_values=OUTPUT_PLACES,
    boundaries=SCORE_BOUNDARIES,
)
SHADOW_DEFAULT_SCORES = histogram(
    "sharded_infer_shadow_default_scores",
    "Scores of the default version for the same requests, with this version's labels.",
    "Releases: what shadow_scores is compared with.",
    label="output",
    label_values=OUTPUT_PLACES,
    boundaries=SCORE_BOUNDARIES,
)

# Only servers with --shadow have them; `SHADOWING` is the first.
SHADOW_FAMILIES = (
    SHADOWING, SHADOW_REQUESTS, SHADOW_DROPPED, SHADOW_SECONDS, SHADOW_DIFFERENCE, SHADOW_LARGEST,
    SHADOW_SCORES, SHADOW_DEFAULT_SCORES,
)  # fmt: skip
