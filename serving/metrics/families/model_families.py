"""Families of a version's tables, lookups, sequences and scores, and of a model's releases."""

from functools import partial

from serving.metrics.families.family import Detail, Family, Kind, counter, gauge, histogram, largest

# Ranks of a plan with a place of their own; later ranks share the last one.
RANK_PLACES = tuple(str(place) for place in range(64))
# Outputs of a model whose scores are counted: as many as a request can name.
OUTPUT_PLACES = tuple(str(place) for place in range(16))
# Features whose empty bags are counted, or tables whose raw ids are; later ones share the last
# place.
NAMED_PLACES = tuple(str(place) for place in range(128))
# Label value of the shared last place.
OTHERS = "(others)"
# The precision of a tower as it was published, and as it runs.
_PRODUCTS = (
    "fp32, fp32", "tf32, fp32", "bf16, bf16", "bf16, fp32", "fp16, fp16", "fp16, fp32",
    "int8, int8", "int8, fp32",
)  # fmt: skip
SMALL_PAGES, HUGE_PAGES = PAGE_SIZES = ("4KiB", "2MiB")
# Phase of a version that fails because its files change while it is served.
SERVE_PHASE = "serve"
# Fine between 0 and 1, for probabilities; up to 100 on both sides for other outputs.
SCORE_BOUNDARIES = (
    -100.0, -30.0, -10.0, -5.0, -3.0, -2.0, -1.0, -0.5, -0.2, -0.1, 0.0,
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85,
    0.9, 0.95, 0.98, 0.99, 0.995, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0,
)  # fmt: skip
# Phases of a load: fetched and verified, checked against memory, opened, warmed up, checked against
# its golden requests, until the last worker has done so. "hosts", of a front: its shard hosts have
# the version, and answer.
HOSTS_PHASE = "hosts"
OPEN_PHASE = "open"
LOAD_PHASES = ("fetch", "verify", HOSTS_PHASE, "memory", OPEN_PHASE, "warm_up", "golden", "workers")

# What a version or a model is, at every level of detail.
_state = partial(largest, detail=Detail.OFF)

LOADED = _state(
    "sharded_infer_model_loaded",
    "1 for each version that is loaded and ready.",
    "Releases: which versions a server can answer with.",
)
SHARE = _state(
    "sharded_infer_version_share",
    "Share of the requests that name no version which the version should get, 0 to 1.",
    "Releases: what the weights of labels say, beside the requests that versions get.",
)
TABLE_BYTES = _state(
    "sharded_infer_table_bytes",
    "Bytes of the version's table files, mapped or copied; workers share them.",
    "Capacity planning: what a version takes.",
)
TABLE_HUGE_PAGE_BYTES = _state(
    "sharded_infer_table_huge_page_bytes",
    "Bytes of the version's tables in huge pages, mapped or copied, when they were loaded.",
    "Operators: less than table_bytes means slower lookups.",
)
TABLE_PAGE_BYTES = _state(
    "sharded_infer_table_page_bytes",
    "Bytes of the version's tables by the size of their pages, when they were loaded.",
    "Operators: tables in 4 KiB pages are looked up more slowly.",
    label="page_size",
    label_values=PAGE_SIZES,
)
CREATED = _state(
    "sharded_infer_version_created_timestamp_seconds",
    "When a loaded version was published, in seconds since 1970.",
    "Releases: the age of each version.",
)
PRODUCTS = _state(
    "sharded_infer_tower_precision_info",
    "1 for the precision in which the version's tower was published, and the one that runs on the "
    "host.",
    "Capacity planning: replicas whose processors have no products of the published precision.",
    label="published, running",
    label_values=_PRODUCTS,
    hidden_zeros=frozenset({"fp32", "bf16", "fp16", "int8"}),
    is_fact=True,
)
_of_rank = partial(counter, label="rank", label_values=RANK_PLACES, detail=Detail.FULL)
# A table's places are those of the version's tables with id maps, or with rows in tiers.
_of_table = partial(
    Family, label="table", label_values=NAMED_PLACES, hidden_zeros=frozenset({OTHERS})
)
counter_of_table = partial(_of_table, kind=Kind.COUNTER, detail=Detail.FULL)
gauge_of_table = partial(_of_table, kind=Kind.GAUGE, detail=Detail.FULL)

RANK_ROWS = _of_rank(
    "sharded_infer_rank_rows",
    "Rows looked up, by rank of the plan.",
    "Planning: shards with more lookups than others.",
)
RANK_ROW_BYTES = _of_rank(
    "sharded_infer_rank_row_bytes",
    "Bytes of the rows looked up, as they are stored, by rank of the plan.",
    "Planning: the imbalance between ranks, largest over mean, which a new plan reduces.",
)
RANK_BUSY_SECONDS = _of_rank(
    "sharded_infer_rank_busy_seconds",
    "Time that lookups on the rank took.",
    "Planning: whether a rank's bytes cost what the plan predicted.",
)
RANK_MEMORY_BYTES = _state(
    "sharded_infer_rank_memory_bytes",
    "Bytes of tables placed on the rank.",
    "Planning: how full ranks are.",
    label="rank",
    label_values=RANK_PLACES,
)
BROADCAST_ROWS_SAVED = counter(
    "sharded_infer_broadcast_rows_saved",
    "Rows not looked up because samples of a request share the bag.",
    "Client authors: (rows + saved) / rows is the gain from sharing a user's features.",
    detail=Detail.FULL,
)
EMPTY_BAGS = counter(
    "sharded_infer_empty_bags",
    "Samples scored with an empty bag of the feature: left out, sent empty, or with only "
    "padding and ignored ids.",
    "Model owners: a missing feature causes no error; divided by samples, this is the share "
    "that lacks it.",
    label="feature",
    label_values=NAMED_PLACES,
    hidden_zeros=frozenset({OTHERS}),
    detail=Detail.FULL,
)
IDS_MAPPED = counter_of_table(
    "sharded_infer_ids_mapped",
    "Raw ids that were looked up in the table's id map, known or not, of requests that were run.",
    "Alerts and dashboards: ids_unknown over it is the share of unknown ids.",
)
IDS_UNKNOWN = counter_of_table(
    "sharded_infer_ids_unknown",
    "Raw ids that the table's id map does not know, of requests that were not refused for them.",
    "Model owners: a jump means that a feature pipeline and the version do not fit together.",
    detail=Detail.BASIC,
)
HOT_ROW_SHARE = largest(
    "sharded_infer_hot_row_share",
    "Share of the row accesses in a recent sample that went to its hottest 1% of rows.",
    "Planning: the gain from a cache of hot rows, or from replicating them.",
    detail=Detail.FULL,
)
SCORES = histogram(
    "sharded_infer_scores",
    "Scores of sampled responses, by output; without a sum, as scores may be negative.",
    "Model owners: a distribution that changes without a release means that features changed.",
    label="output",
    label_values=OUTPUT_PLACES,
    boundaries=SCORE_BOUNDARIES,
    detail=Detail.FULL,
)
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
    "Requests whose user's state, or that of a history's beginning, was kept (hit), and others.",
    "Model owners: the hit rate says whether --user-cache-mib pays.",
    label="result",
    label_values=("hit", "miss"),
    detail=Detail.FULL,
)
USER_POSITIONS = counter(
    "sharded_infer_user_positions",
    "Positions of histories whose state was kept, and those that were computed.",
    "Model owners: the share that is kept is what --user-cache-mib saves of the user's stage.",
    label="result",
    label_values=("kept", "computed"),
    detail=Detail.FULL,
)
USER_EVICTIONS = counter(
    "sharded_infer_user_states_evicted",
    "States that left the user cache for states of this version.",
    "Model owners: many evictions beside few hits ask for a larger user cache.",
    detail=Detail.FULL,
)
USER_CACHE_BYTES = largest(
    "sharded_infer_user_cache_bytes",
    "Bytes of the states in the user cache, which all workers share.",
    "Planning: the memory that the user cache takes beside the tables.",
    detail=Detail.FULL,
)

LOADS = counter(
    "sharded_infer_version_loads",
    "Versions that every worker has loaded and that clients could ask for.",
    "Releases: versions that arrived.",
    detail=Detail.OFF,
)
LOAD_FAILURES = counter(
    "sharded_infer_version_load_failures",
    "Versions that were not served, by the phase in which they failed.",
    "Releases: the alert on a swap that failed, and its phase.",
    label="phase",
    label_values=(*LOAD_PHASES, SERVE_PHASE),
    detail=Detail.OFF,
)
LOAD_SECONDS = _state(
    "sharded_infer_version_load_seconds",
    "Time that a phase of the last load took in the slowest worker.",
    "Releases: what a release waits for.",
    label="phase",
    label_values=LOAD_PHASES,
)
LOOKED = _state(
    "sharded_infer_repository_read_timestamp_seconds",
    "When the model's versions and labels were last read, in seconds since 1970.",
    "On call: a server that cannot read its repository serves an old model.",
)
# The page shows each worker's own value.
SERVED_VERSION = gauge(
    "sharded_infer_served_version",
    "The version for requests that name none, by worker; 0: none.",
    "Releases: annotations where a version changes; workers that differ.",
    label="worker",
    detail=Detail.OFF,
)
MISSING = _state(
    "sharded_infer_model_missing",
    "1 for each model that should be served and has no version that can be.",
    "On call: the alert on a model that a server runs without.",
)
# The page computes it from the default version's creation time.
SERVED_AGE = _state(
    "sharded_infer_served_age_seconds",
    "Time since the version for requests that name none was published.",
    "Model owners: the alert on a stale model.",
)
# Its label values are the labels that a server follows, and "default".
LABEL_VERSION = _state(
    "sharded_infer_label_version",
    "The version that a label means in this server; 0: none.",
    "Releases: whether a moved label has arrived.",
    label="label",
    label_values=("default",),
)

TABLE_FAMILIES = (
    LOADED, SHARE, TABLE_BYTES, TABLE_HUGE_PAGE_BYTES, TABLE_PAGE_BYTES, CREATED, PRODUCTS,
    RANK_ROWS, RANK_ROW_BYTES, RANK_BUSY_SECONDS, RANK_MEMORY_BYTES, BROADCAST_ROWS_SAVED,
    EMPTY_BAGS, IDS_MAPPED, IDS_UNKNOWN, HOT_ROW_SHARE, SCORES,
    SEQUENCE_POSITIONS, USER_STATES, USER_POSITIONS, USER_EVICTIONS, USER_CACHE_BYTES,
)  # fmt: skip
MODEL_FAMILIES = (
    LOADS, LOAD_FAILURES, LOAD_SECONDS, LOOKED, SERVED_VERSION, MISSING, SERVED_AGE, LABEL_VERSION,
)  # fmt: skip
