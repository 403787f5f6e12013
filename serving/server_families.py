"""What is counted of a server as a whole, and of its processes."""

from serving.metric_family import Detail, Family, Kind

IN_FLIGHT = Family(
    "sharded_infer_requests_in_flight",
    "Predict requests being answered now.",
    Kind.GAUGE,
    "Whoever is on call: calls that hang stay in it.",
)
WORKERS = Family(
    "sharded_infer_workers",
    "Processes that answer requests now.",
    Kind.GAUGE,
    "Whoever is on call: fewer than were started means that some are being replaced.",
    detail=Detail.OFF,
)
SLOTS = Family(
    "sharded_infer_slots",
    "Batches that all workers can run side by side.",
    Kind.GAUGE,
    "Capacity planning: rate(busy_seconds_total) over it is the busy share.",
    detail=Detail.OFF,
)
WORKER_RESTARTS = Family(
    "sharded_infer_worker_restarts",
    "Workers that were started in the place of one that died, or was killed because it hung.",
    Kind.COUNTER,
    "Whoever is on call: any is a crash or a hang to look into.",
    detail=Detail.OFF,
)
MINOR_FAULTS = Family(
    "sharded_infer_minor_page_faults",
    "Pages that the workers' processes had mapped while they answered requests, loads included; "
    "hardly any more of them than requests in steady state.",
    Kind.COUNTER,
    "Who runs the machines: tables that the kernel took from memory, and slow requests with them.",
)
TRACES_DROPPED = Family(
    "sharded_infer_traces_dropped",
    "Traced requests whose spans were lost: too many waited, or the collector did not take them.",
    Kind.COUNTER,
    "Who runs the collector: traces that are missing are missed.",
)
# The page gives each worker's own value of these, not the sum.
WORKER_REQUESTS = Family(
    "sharded_infer_worker_requests",
    "Predict requests answered, by worker, whatever their status code.",
    Kind.COUNTER,
    "Whoever is on call: connections that load few of the workers.",
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
    "Memory of the worker's process now, with the pages that it shares with others.",
    Kind.GAUGE,
    "Who runs the machines: growth without a release is a leak.",
    label="worker",
    detail=Detail.FULL,
)
WORKER_HUGE_PAGE_BYTES = Family(
    "sharded_infer_worker_huge_page_bytes",
    "Memory of the worker's process that lies in huge pages, looked at every ten seconds or less "
    "often.",
    Kind.GAUGE,
    "Who runs the machines: whether huge pages hold.",
    label="worker",
    detail=Detail.FULL,
)
# The page reads these two when it is asked for.
MEMORY_AVAILABLE_BYTES = Family(
    "sharded_infer_memory_available_bytes",
    "What processes may still take: the machine's available memory, or less by a cgroup's limit.",
    Kind.LARGEST,
    "Who runs the machines: the alert on memory near its limit; whether a release will fit.",
    detail=Detail.OFF,
)
MEMORY_LIMIT_BYTES = Family(
    "sharded_infer_memory_limit_bytes",
    "The machine's memory, or less by a cgroup's limit.",
    Kind.LARGEST,
    "Who runs the machines: what the available memory is a share of.",
    detail=Detail.OFF,
)
# The page makes it; its labels are those of `metrics_page`.
BUILD_INFO = Family(
    "sharded_infer_build_info",
    "1, with the versions of what runs as labels.",
    Kind.GAUGE,
    "Whoever is on call: which build a server runs, joined to any other series of its instance.",
    label="build, torch, python",
    detail=Detail.OFF,
)

SERVER_FAMILIES = (
    IN_FLIGHT,
    MINOR_FAULTS,
    TRACES_DROPPED,
    WORKERS,
    SLOTS,
    WORKER_RESTARTS,
    WORKER_REQUESTS,
    WORKER_CPU_SECONDS,
    WORKER_RESIDENT_BYTES,
    WORKER_HUGE_PAGE_BYTES,
)
BY_WORKER = (
    WORKER_REQUESTS,
    WORKER_CPU_SECONDS,
    WORKER_RESIDENT_BYTES,
    WORKER_HUGE_PAGE_BYTES,
)
# Without cells: known when the page is asked for.
PAGE_FAMILIES = (MEMORY_AVAILABLE_BYTES, MEMORY_LIMIT_BYTES, BUILD_INFO)
