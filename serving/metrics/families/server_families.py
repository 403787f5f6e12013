"""Families of a server and its processes."""

from serving.metrics.families.family import Detail, counter, gauge, largest
from serving.metrics.families.shard_families import SHARD_FAMILIES

IN_FLIGHT = gauge(
    "sharded_infer_requests_in_flight",
    "Predict requests being answered now.",
    "On call: calls that hang stay in it.",
)
WORKERS = gauge(
    "sharded_infer_workers",
    "Processes that answer requests now.",
    "On call: fewer than were started means that some are being replaced.",
    detail=Detail.OFF,
)
SLOTS = gauge(
    "sharded_infer_slots",
    "Batches that all workers can run at once.",
    "Capacity planning: rate(busy_seconds_total) over it is the busy share.",
    detail=Detail.OFF,
)
WORKER_RESTARTS = counter(
    "sharded_infer_worker_restarts",
    "Workers that replaced one that died, or that was killed because it hung.",
    "On call: each is a crash or a hang to look into.",
    detail=Detail.OFF,
)
MINOR_FAULTS = counter(
    "sharded_infer_minor_page_faults",
    "Minor page faults of the workers while they answered requests, loads included; less than "
    "one a request in steady state.",
    "Operators: a rise means that the kernel reclaims pages of tables, which slows requests.",
)
TRACES_DROPPED = counter(
    "sharded_infer_traces_dropped",
    "Traced requests whose spans were lost: too many waited, or the collector did not take them.",
    "Operators: traces missing from the collector.",
)
RECORD_OUTCOMES = ("written", "full", "unusual", "failed")
RECORDED = counter(
    "sharded_infer_recorded_requests",
    "Requests chosen for --record. written: in files; full: too many waited; unusual: their "
    "messages could not be read again; failed: their file could not be written.",
    "Operators: requests that a recording lacks.",
    label="outcome",
    label_values=RECORD_OUTCOMES,
)
HTTP_DROPS = (
    "connections", "address", "descriptors", "head_late", "body_late", "unread", "malformed",
)  # fmt: skip
HTTP_DROPPED = counter(
    "sharded_infer_http_dropped",
    "HTTP connections and requests dropped by limits: too many connections, or too many of an "
    "address; no descriptors; headers or bodies that came too slowly; answers that were not read; "
    "bytes that are no HTTP.",
    "On call: clients that are too many, too slow or hostile.",
    label="reason",
    label_values=HTTP_DROPS,
)
GRPC_DROPS = (
    "connections", "address", "handshake", "late", "malformed", "resets", "frames", "pings",
    "calls", "unread", "keepalive", "silent",
)  # fmt: skip
GRPC_DROPPED = counter(
    "sharded_infer_grpc_dropped",
    "Connections and calls of gRPC dropped by limits: too many connections, or too many of an "
    "address; TLS that failed; what came too late; bytes that are no HTTP/2; too many resets, "
    "frames that carry nothing, pings or open calls; answers that were not read; pings without "
    "an answer; streams without requests that gave way to others.",
    "On call: clients that are too many, too slow or hostile.",
    label="reason",
    label_values=GRPC_DROPS,
)
# The page shows each worker's own value of these, not the sum.
WORKER_REQUESTS = counter(
    "sharded_infer_worker_requests",
    "Predict requests answered, by worker, whatever their status code.",
    "On call: connections that load few of the workers.",
    label="worker",
)
WORKER_CPU_SECONDS = counter(
    "sharded_infer_worker_cpu_seconds",
    "Processor time of the worker's process, loads included.",
    "Capacity planning: cores in use; processor time a request.",
    label="worker",
    detail=Detail.FULL,
)
WORKER_RESIDENT_BYTES = gauge(
    "sharded_infer_worker_resident_bytes",
    "Memory of the worker's process now, including pages shared with others.",
    "Operators: growth without a release is a leak.",
    label="worker",
    detail=Detail.FULL,
)
WORKER_HUGE_PAGE_BYTES = gauge(
    "sharded_infer_worker_huge_page_bytes",
    "Memory of the worker's process in huge pages, updated every ten seconds or less often.",
    "Operators: whether huge pages last.",
    label="worker",
    detail=Detail.FULL,
)
# The page reads these two on request.
MEMORY_AVAILABLE_BYTES = largest(
    "sharded_infer_memory_available_bytes",
    "Memory that processes may still take: the machine's available memory, or less by a "
    "cgroup's limit.",
    "Operators: the alert on memory near its limit; whether a release will fit.",
    detail=Detail.OFF,
)
MEMORY_LIMIT_BYTES = largest(
    "sharded_infer_memory_limit_bytes",
    "The machine's memory, or less by a cgroup's limit.",
    "Operators: what the available memory is a share of.",
    detail=Detail.OFF,
)
# Only the page has it; its labels are those of `metrics_page`.
BUILD_INFO = gauge(
    "sharded_infer_build_info",
    "1, with the versions of the software as labels.",
    "On call: which build a server runs, joined to any other series of its instance.",
    label="build, torch, python",
    detail=Detail.OFF,
)

SERVER_FAMILIES = (
    IN_FLIGHT, MINOR_FAULTS, TRACES_DROPPED, RECORDED, HTTP_DROPPED, GRPC_DROPPED, WORKERS, SLOTS,
    WORKER_RESTARTS, WORKER_REQUESTS, WORKER_CPU_SECONDS, WORKER_RESIDENT_BYTES,
    WORKER_HUGE_PAGE_BYTES, *SHARD_FAMILIES,
)  # fmt: skip
BY_WORKER = (WORKER_REQUESTS, WORKER_CPU_SECONDS, WORKER_RESIDENT_BYTES, WORKER_HUGE_PAGE_BYTES)
# Without cells: their values are computed on request.
PAGE_FAMILIES = (MEMORY_AVAILABLE_BYTES, MEMORY_LIMIT_BYTES, BUILD_INFO)
