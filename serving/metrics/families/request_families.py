"""Families of a version's requests, batches and queue."""

from dataclasses import replace

from serving.metrics.families.family import Detail, counter, gauge, histogram, largest
from serving.status import StatusCode

# 100 µs to 10 s, each boundary about 1.5 times the one before, so that a quantile read off a
# dashboard is within 25% of the truth anywhere in the range.
LATENCY_BOUNDARIES = (
    0.0001, 0.00015, 0.00025, 0.0004, 0.0006, 0.001, 0.0015, 0.0025, 0.004, 0.006,
    0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0, 1.5, 2.5, 4.0, 6.0, 10.0,
)  # fmt: skip
BATCH_SAMPLES_BOUNDARIES = tuple(float(1 << power) for power in range(17))
BATCH_REQUESTS_BOUNDARIES = tuple(float(1 << power) for power in range(11))
COST_RATIO_BOUNDARIES = (
    0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0,
)  # fmt: skip
PHASES = ("decode", "lookup", "tower", "encode")
CODES = tuple(code.name for code in StatusCode)
REFUSALS = ("queue_full", "deadline", "cancelled", "expired")
# Phases that a slow request's time is attributed to.
BLAMED = (
    "queue", "batch_mates", "decode", "lookup", "tower", "encode", "page_faults", "preempted",
    "other",
)  # fmt: skip

REQUESTS = counter(
    "sharded_infer_requests",
    "Predict requests answered, by gRPC status code.",
    "On call: the request rate, and the share of errors behind the availability alert.",
    label="code",
    label_values=CODES,
    hidden_zeros=frozenset(CODES) - {"OK"},
    detail=Detail.OFF,
)
UNKNOWN_REQUESTS = replace(REQUESTS, hidden_zeros=frozenset(CODES))
REQUEST_SECONDS = histogram(
    "sharded_infer_request_seconds",
    "Time from a decoded RPC message to its encoded response, of successful requests.",
    "On call: percentiles, and the share within the objective, which is a boundary.",
    boundaries=LATENCY_BOUNDARIES,
    spare_buckets=1,
)
LATENCY_OBJECTIVE = largest(
    "sharded_infer_latency_objective_seconds",
    "The version's latency objective, which is also a boundary of its request_seconds.",
    "Alerts and dashboards: they compare request_seconds with it.",
    hidden_zeros=frozenset({""}),
    is_fact=True,
)
# The page derives it from request_seconds, so requests do not pay for it.
WITHIN_OBJECTIVE = counter(
    "sharded_infer_requests_within_objective",
    "Successful requests that took no longer than the version's latency objective.",
    "The latency alert: the difference from request_seconds_count was late.",
)
PHASE_SECONDS = histogram(
    "sharded_infer_phase_seconds",
    "Time of one phase of a successful request: decode, lookup, tower or encode.",
    "Model authors: where the time goes; lookup and tower are the whole batch's.",
    label="phase",
    label_values=PHASES,
    boundaries=LATENCY_BOUNDARIES,
)
QUEUE_SECONDS = histogram(
    "sharded_infer_queue_seconds",
    "Time a successful request waited between being decoded and its batch starting.",
    "On call: long waits need more cores; a slow server without waits has another cause.",
    boundaries=LATENCY_BOUNDARIES,
)
SAMPLES = counter(
    "sharded_infer_samples",
    "Samples (user-item pairs) scored.",
    "Capacity planning: the load, independent of the size of requests.",
    detail=Detail.OFF,
)
IDS_OUT_OF_RANGE = counter(
    "sharded_infer_ids_out_of_range",
    "Ids outside their tables that were ignored or wrapped, as the model's spec says; and raw ids "
    "that id maps do not know.",
    "Model owners: a rise means that features and tables are not of the same day.",
)
BATCH_SAMPLES = histogram(
    "sharded_infer_batch_samples",
    "Samples of an executed batch.",
    "Batching: whether requests are batched at all.",
    boundaries=BATCH_SAMPLES_BOUNDARIES,
)
BATCH_REQUESTS = histogram(
    "sharded_infer_batch_requests",
    "Requests of an executed batch.",
    "Batching: how many share one batch's cost.",
    boundaries=BATCH_REQUESTS_BOUNDARIES,
)
BUSY_SECONDS = counter(
    "sharded_infer_busy_seconds",
    "Time that run slots spent executing batches.",
    "Capacity planning: its rate over sharded_infer_slots is the busy share.",
)
COST_PREDICTED_SECONDS = counter(
    "sharded_infer_cost_predicted_seconds",
    "Time that executed batches were expected to take, to compare with the busy time.",
    "Batching: the cost table's average error.",
)
COST_RATIO = histogram(
    "sharded_infer_cost_ratio",
    "Measured over predicted time of an executed batch.",
    "Batching: how reliable the cost table is, which decides what is refused and what waits.",
    boundaries=COST_RATIO_BOUNDARIES,
    detail=Detail.FULL,
)
QUEUE_REQUESTS = gauge(
    "sharded_infer_queue_requests",
    "Requests waiting now.",
    "On call: saturation before it shows in latencies.",
)
QUEUE_SAMPLES = gauge(
    "sharded_infer_queue_samples",
    "Samples of the requests waiting now.",
    "On call: the work that waits, independent of the size of requests.",
)
QUEUE_OLDEST_SECONDS = largest(
    "sharded_infer_queue_oldest_seconds",
    "How long the oldest waiting request has waited, 0 without one; updated every second.",
    "On call: a queue that does not move has an old first request, however short it is.",
    detail=Detail.FULL,
)
REQUESTS_REFUSED = counter(
    "sharded_infer_requests_refused",
    "Requests that were not run: the queue was full, the deadline could not be met, the client "
    "cancelled, or the deadline passed while waiting.",
    "On call: load that is shed, and why.",
    label="reason",
    label_values=REFUSALS,
)
SLOW_REQUESTS = counter(
    "sharded_infer_slow_requests",
    "Requests slower than the slow-request threshold, by their slowest phase.",
    "On call: what to look at first when percentiles rise.",
    label="phase",
    label_values=BLAMED,
)

REQUEST_FAMILIES = (
    REQUESTS, REQUEST_SECONDS, LATENCY_OBJECTIVE, WITHIN_OBJECTIVE, PHASE_SECONDS, QUEUE_SECONDS,
    SAMPLES, IDS_OUT_OF_RANGE, BATCH_SAMPLES, BATCH_REQUESTS, BUSY_SECONDS, COST_PREDICTED_SECONDS,
    COST_RATIO, QUEUE_REQUESTS, QUEUE_SAMPLES, QUEUE_OLDEST_SECONDS, REQUESTS_REFUSED,
    SLOW_REQUESTS,
)  # fmt: skip
