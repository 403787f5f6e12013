"""Families of a server and its processes."""

from serving.metrics.families.family import Detail, Family, Kind
from serving.metrics.families.shard_families import SHARD_FAMILIES

IN_FLIGHT = Family(
    "sharded_infer_requests_in_flight",
    "Predict requests being answered now.",
    Kind.GAUGE,
    "On call: calls that hang stay in it.",
)
WORKERS = Family(
    "sharded_infer_workers",
    "Processes that answer requests now.",
    Kind.GAUGE,
    "On call: fewer than were started means that some are being replaced.",
    detail=Detail.OFF,
)
SLOTS = Family(
    "sharded_infer_slots",
    "Batches that all workers can run at once.",
    Kind.GAUGE,
    "Capacity planning: rate(busy_seconds_total) over it is the busy share.",
    detail=Detail.OFF,
)
WORKER_RESTARTS = Family(
    "sharded_infer_worker_restarts",
    "Workers that replaced one that died, or that was killed because it hung.",
    Kind.COUNTER,
    "On call: each is a crash or a hang to look into.",
    detail=Detail.OFF,
)
MINOR_FAULTS = Family(
    "sharded_infer_minor_page_faults",
    "Minor page faults of the workers while they answered requests, loads included; less than "
    "one a request in steady state.",
    Kind.COUNTER,
    "Operators: a rise means that the kernel reclaims pages of tables, which slows requests.",
)
TRACES_DROPPED = Family(
    "sharded_infer_traces_dropped",
    "Traced requests whose spans were lost: too many waited, or the collector did not take them.",
    Kind.COUNTER,
    "Operators: traces missing from the collector.",
)
HTTP_DROPS = (
    "connections", "address", "descriptors", "head_late", "body_late", "unread", "malformed",
)  # fmt: skip
HTTP_DROPPED = Family(
    "sharded_infer_http_dropped",
    "HTTP connections and requests dropped by limits: too many connections, or too many of an "
    "address; no descriptors; headers or bodies that came too slowly; answers that were not read; "
    "bytes that are no HTTP.",
    Kind.COUNTER,
    "On call: clients that are too many, too slow or hostile.",
    label="reason",
    label_values=HTTP_DROPS,
)
GRPC_DROPS = (
    "connections", "address", "handshake", "late", "malformed", "resets", "frames", "pings",
    "calls", "unread", "keepalive", "silent",
)  # fmt: skip
GRPC_DROPPED = Family(
    "sharded_infer_grpc_dropped",
    "Connections and calls of gRPC dropped by limits: too many connections, or too many of an "
    "address; TLS that failed; what came too late; bytes that are no HTTP/2; too many resets, "
    "frames that carry nothing, pings or open calls; answers that were not read; pings without "
    "an answer; streams without requests that gave way to others.",
    Kind.COUNTER,
    "On call: clients that are too many, too slow or hostile.",
    label="reason",
    label_values=GRPC_DROPS,
)
# The page shows each worker's own value of these, not the sum.
WORKER_REQUESTS = Family(
    "sharded_infer_worker_requests",
    "Predict requests answered, by worker, whatever their status code.",
    Kind.COUNTER,
    "On call: connections that load few of the workers.",
    label="worker",
)
WORKER_CPU_SECONDS = Family(
    "sharded_infer_worker_cpu_seconds",
    "Processor time of the worker's process, loads included.",
    Kind.COUNTER,
    "Capacity planning: cores in use; processor time a request.",
    label="worker",
    detail=Detail.FULL,
)
WORKER_RESIDENT_BYTES = Family(
    "sharded_infer_worker_resident_bytes",
    "Memory of the worker's process now, including pages shared with others.",
    Kind.GAUGE,
    "Operators: growth without a release is a leak.",
    label="worker",
    detail=Detail.FULL,
)
WORKER_HUGE_PAGE_BYTES = Family(
    "sharded_infer_worker_huge_page_bytes",
    "Memory of the worker's process in huge pages, updated every ten seconds or less often.",
    Kind.GAUGE,
    "Operators: whether huge pages last.",
    label="worker",
    detail=Detail.FULL,
)
# The page reads these two on request.
MEMORY_AVAILABLE_BYTES = Family(
    "sharded_infer_memory_available_bytes",
    "Memory that processes may still take: the machine's available memory, or less by a "
    "cgroup's limit.",
    Kind.LARGEST,
    "Operators: the alert on memory near its limit; whether a release will fit.",
    detail=Detail.OFF,
)
MEMORY_LIMIT_BYTES = Family(
    "sharded_infer_memory_limit_bytes",
    "The machine's memory, or less by a cgroup's limit.",
    Kind.LARGEST,
    "Operators: what the available memory is a share of.",
    detail=Detail.OFF,
)
# Only the page has it; its labels are those of `metrics_page`.
BUILD_INFO = Family(
    "sharded_infer_build_info",
    "1, with the versions of the software as labels.",
    Kind.GAUGE,
    "On call: which build a server runs, joined to any other series of its instance.",
    label="build, torch, python",
    detail=Detail.OFF,
)

SERVER_FAMILIES = (
    IN_FLIGHT,
    MINOR_FAULTS,
    TRACES_DROPPED,
    HTTP_DROPPED,
    GRPC_DROPPED,
    WORKERS,
    SLOTS,
    WORKER_RESTARTS,
    WORKER_REQUESTS,
    WORKER_CPU_SECONDS,
    WORKER_RESIDENT_BYTES,
    WORKER_HUGE_PAGE_BYTES,
    *SHARD_FAMILIES,
)
BY_WORKER = (
    WORKER_REQUESTS,
    WORKER_CPU_SECONDS,
    WORKER_RESIDENT_BYTES,
    WORKER_HUGE_PAGE_BYTES,
)
# Without cells: their values are computed on request.
PAGE_FAMILIES = (MEMORY_AVAILABLE_BYTES, MEMORY_LIMIT_BYTES, BUILD_INFO)
