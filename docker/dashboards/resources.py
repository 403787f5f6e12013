"""The machine below the service: how busy each resource is, what waits for it, what failed."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, dashed, graph, heatmap
from dashboards.selectors import of_server, of_version, quantile, rate

_BUSY = rate(of_version("sharded_infer_busy_seconds_total"))


def resources_dashboard() -> Dashboard:
    """Which resource is the limit."""
    dashboard = framed(
        "sharded-infer-resources",
        "sharded-infer: resources",
        "Which resource is the limit: slots, the queue, processors, or memory?",
    )
    rows = {
        "Run slots and workers": _slots(),
        "Queue": _queue(),
        "Batches": _batches(),
        "Processors and memory": _machine(),
        "Ranks": _ranks(),
    }
    return filled(dashboard, rows)


def _slots() -> list[Builder[Panel]]:
    slots = f"sum by (instance) ({of_server('sharded_infer_slots')})"
    workers = rate(of_server("sharded_infer_worker_requests_total"))
    restarts = f"increase({of_server('sharded_infer_worker_restarts_total')}[$__rate_interval])"
    lost = rate(of_server("sharded_infer_traces_dropped_total"))
    return [
        graph(
            Text(
                "Slots that are busy",
                "Share of run slots that execute a batch. Above 80% requests begin to wait: add "
                "replicas. Low while latency is high: the time goes elsewhere, see the phases.",
            ),
            Query(f"sum by (instance) ({_BUSY}) / {slots}", "{{instance}}"),
            unit=units.PercentUnit,
            warn=0.8,
            bad=0.95,
            most=1.0,
        ),
        graph(
            Text(
                "Slots in use, by version",
                "How many slots each version keeps busy. A new version above the old one's line "
                "costs more for the same requests.",
            ),
            Query(f"sum by (model, version) ({_BUSY})", "{{model}} {{version}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "Requests by worker",
                "The kernel spreads connections, not requests. Lines far apart: few clients, or "
                "clients that never reconnect; see --max-connection-age.",
            ),
            Query(f"sum by (instance, worker) ({workers})", "{{instance}} worker {{worker}}"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "Workers, and restarts of them",
                "Restarts come after a crash or when the system was out of memory: the log says "
                "by which signal a worker ended.",
            ),
            Query(
                f"sum by (instance) ({of_server('sharded_infer_workers')})", "{{instance}} workers"
            ),
            Query(f"sum by (instance) ({restarts})", "{{instance}} restarts"),
            unit=units.Short,
            width=16,
            steps=True,
        ),
        graph(
            Text(
                "Traces lost",
                "Traced requests whose spans did not arrive: the collector is slow, away, or too "
                "many requests are traced (--trace-ratio).",
            ),
            Query(f"sum by (instance) ({lost})", "{{instance}}"),
            unit=units.Short,
        ),
    ]


def _queue() -> list[Builder[Panel]]:
    waiting = f"sum by (model) ({of_version('sharded_infer_queue_requests')})"
    samples = f"sum by (model) ({of_version('sharded_infer_queue_samples')})"
    oldest = f"max by (model) ({of_version('sharded_infer_queue_oldest_seconds')})"
    objective = of_version("sharded_infer_latency_objective_seconds")
    seconds = "sharded_infer_queue_seconds"
    return [
        graph(
            Text(
                "Waiting",
                "Requests and their samples that wait for a slot. Never back at zero: more comes "
                "than is answered; add replicas, or let clients set deadlines.",
            ),
            Query(waiting, "{{model}} requests"),
            Query(samples, "{{model}} samples"),
            unit=units.Short,
        ),
        dashed(
            graph(
                Text(
                    "Age of the oldest",
                    "How long the request that has waited longest has done so. Above the dashed "
                    "objective it is late before it has begun: lower --max-queue-requests.",
                ),
                Query(oldest, "{{model}}"),
                Query(f"min({objective})", "objective"),
                unit=units.Seconds,
            ),
            "objective",
        ),
        graph(
            Text(
                "Delay in the queue",
                "Between being decoded and the batch's start, of successful requests. A large "
                "share of the latency on the service dashboard: the slots are the limit.",
            ),
            Query(quantile(0.5, seconds), "p50"),
            Query(quantile(0.99, seconds), "p99"),
            unit=units.Seconds,
        ),
    ]


def _batches() -> list[Builder[Panel]]:
    requests, samples = "sharded_infer_batch_requests", "sharded_infer_batch_samples"
    means = [
        f"sum by (model) ({rate(of_version(name + '_sum'))})"
        f" / sum by (model) ({rate(of_version(name + '_count'))})"
        for name in (requests, samples)
    ]
    buckets = [
        f"sum by (le) (increase({of_version(name + '_bucket')}[$__rate_interval]))"
        for name in (requests, samples)
    ]
    return [
        heatmap(
            Text(
                "Requests of a batch",
                "All at one: nothing is merged, because slots are free or merging does not pay. "
                "Grows with load; that is how a batching server keeps up.",
            ),
            buckets[0],
            unit=units.Short,
            width=8,
            decimals=0,
        ),
        heatmap(
            Text(
                "Samples of a batch",
                "What the tower runs at. A second band far above the first is one client with "
                "large requests: its batch mates wait for it.",
            ),
            buckets[1],
            unit=units.Short,
            width=8,
            decimals=0,
        ),
        graph(
            Text(
                "Mean batch",
                "Falls while load is steady: the cost table has learnt that merging does not "
                "pay; see its error on the releases dashboard.",
            ),
            Query(means[0], "{{model}} requests"),
            Query(means[1], "{{model}} samples"),
            unit=units.Short,
        ),
    ]


def _machine() -> list[Builder[Panel]]:
    cpu = rate(of_server("sharded_infer_worker_cpu_seconds_total"))
    resident = of_server("sharded_infer_worker_resident_bytes")
    huge = of_server("sharded_infer_worker_huge_page_bytes")
    faults = rate(of_server("sharded_infer_minor_page_faults_total"))
    answered = rate(of_server("sharded_infer_worker_requests_total"))
    available = f"sum by (instance) ({of_server('sharded_infer_memory_available_bytes')})"
    limit = f"sum by (instance) ({of_server('sharded_infer_memory_limit_bytes')})"
    tables = of_version("sharded_infer_table_bytes")
    table_pages = of_version("sharded_infer_table_huge_page_bytes")
    return [
        graph(
            Text(
                "Processors",
                "Processor seconds a second, by worker: 1 is a core. Far above the busy slots: "
                "decoding and encoding cost; try --transport native.",
            ),
            Query(f"sum by (instance, worker) ({cpu})", "{{instance}} worker {{worker}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "Memory that is left",
                "Of the machine or the container, whichever has less. Below 10% the kernel takes "
                "back pages of tables and lookups read from disk; then it ends a process. A new "
                "version needs room beside the old one.",
            ),
            Query(f"{available} / {limit}", "{{instance}}"),
            unit=units.PercentUnit,
            warn=0.2,
            bad=0.1,
            most=1.0,
        ),
        graph(
            Text(
                "Resident memory",
                "By worker; mapped tables count in each that has read them, though they are one. "
                "Grows without end and without new versions: a leak; restart and report it.",
            ),
            Query(f"sum by (instance, worker) ({resident})", "{{instance}} worker {{worker}}"),
            unit=units.BytesIEC,
        ),
        graph(
            Text(
                "Huge pages",
                "Of workers and of tables loaded with memory = huge. Far below the table bytes: "
                "memory was in pieces when they were loaded, and lookups are slower.",
            ),
            Query(f"sum by (instance) ({huge})", "{{instance}} workers"),
            Query(f"max by (model, version) ({table_pages})", "{{model}} {{version}} tables"),
            unit=units.BytesIEC,
        ),
        graph(
            Text(
                "Tables",
                "Bytes of the tables of each loaded version; workers share them. Three lines of "
                "a model at once is a release under way.",
            ),
            Query(f"max by (model, version) ({tables})", "{{model}} {{version}}"),
            unit=units.BytesIEC,
            stacked=True,
        ),
        graph(
            Text(
                "Minor page faults",
                "A second, and for each request. In steady state hardly any a request; many mean "
                "that tables are read for the first time or were taken back: use --memory huge, "
                "or give the machine more memory.",
            ),
            Query(f"sum by (instance) ({faults})", "{{instance}} a second"),
            Query(
                f"sum by (instance) ({faults}) / sum by (instance) ({answered})",
                "{{instance}} a request",
            ),
            unit=units.Short,
        ),
    ]


def _ranks() -> list[Builder[Panel]]:
    busy = rate(of_version("sharded_infer_rank_busy_seconds_total"))
    memory = of_version("sharded_infer_rank_memory_bytes")
    return [
        graph(
            Text(
                "Lookup time, by rank",
                "Seconds a second that lookups on a rank take, over all replicas. One rank far "
                "above the rest is the limit of all: see shards and skew.",
            ),
            Query(f"sum by (model, rank) ({busy})", "{{model}} rank {{rank}}"),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Tables placed, by rank",
                "What the plan put on each rank. Near the rank's memory: plan again with "
                "`sharded-infer plan`, or use smaller row formats.",
            ),
            Query(f"max by (model, version, rank) ({memory})", "{{model}} {{version}} {{rank}}"),
            unit=units.BytesIEC,
            width=12,
            stacked=True,
        ),
    ]
