"""Metric families of sequence models, and of users with cached state."""

from serving.metrics.families.family import Detail, counter, gauge

SEQUENCE_POSITIONS = counter(
    "sharded_infer_sequence_positions",
    "Positions of sequences that the tower was run on: with an id, or padding.",
    "Model owners: the share of the tower's work that is padding.",
    label="content",
    label_values=("id", "padding"),
    detail=Detail.FULL,
)
USER_STATES = counter(
    "sharded_infer_user_states",
    "Requests whose user's stage was found in the user cache (hit), or computed (miss).",
    "Model owners: the hit rate says whether --user-cache-mib pays.",
    label="result",
    label_values=("hit", "miss"),
    detail=Detail.FULL,
)
USER_EVICTIONS = counter(
    "sharded_infer_user_states_evicted",
    "States that left the user cache because it was full.",
    "Model owners: many evictions beside few hits ask for a larger user cache.",
    detail=Detail.FULL,
)
USER_CACHE_BYTES = gauge(
    "sharded_infer_user_cache_bytes",
    "Bytes of the states in the user caches, over all workers.",
    "Planning: the memory that the user cache takes beside the tables.",
    detail=Detail.FULL,
)

SEQUENCE_FAMILIES = (SEQUENCE_POSITIONS, USER_STATES, USER_EVICTIONS, USER_CACHE_BYTES)
