"""The machine below the service: utilization, saturation and errors of each resource."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.batching import batch_panels, queue_panels
from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, graph
from dashboards.selectors import of_server, of_version, rate

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
        "Queue": queue_panels(),
        "Batches": batch_panels(),
        "Processors and memory": _machine(),
        "Ranks": _ranks(),
    }
    return filled(dashboard, rows)


def _slots() -> list[Builder[Panel]]:
    slots = f"sum by (instance) ({of_server('sharded_infer_slots')})"
    workers = rate(of_server("sharded_infer_worker_requests_total"))
    restarts = f"increase({of_server('sharded_infer_worker_restarts_total')}[$__rate_interval])"
    lost = rate(of_server("sharded_infer_traces_dropped_total"))
    recorded = rate(of_server("sharded_infer_recorded_requests_total"))
    http = rate(of_server("sharded_infer_http_dropped_total"))
    grpc = rate(of_server("sharded_infer_grpc_dropped_total"))
    return [
        graph(
            Text(
                "Slots that are busy",
                "Share of run slots that execute a batch. Above 80% requests begin to wait: "
                "add replicas. If it is low while latency is high, the time goes elsewhere: "
                "see the phases.",
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
                "Run slots that each version keeps busy. A new version above the old one's "
                "line costs more for the same requests.",
            ),
            Query(f"sum by (model, version) ({_BUSY})", "{{model}} {{version}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "Requests by worker",
                "Requests by worker. The kernel distributes connections, not requests. Lines "
                "far apart mean few clients, or clients that never reconnect; see "
                "--max-connection-age.",
            ),
            Query(f"sum by (instance, worker) ({workers})", "{{instance}} worker {{worker}}"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "Workers, and restarts of them",
                "Workers restart after a crash, a hang, or a lack of memory. The log has the "
                "signal that ended the worker.",
            ),
            Query(
                f"sum by (instance) ({of_server('sharded_infer_workers')})", "{{instance}} workers"
            ),
            Query(f"sum by (instance) ({restarts})", "{{instance}} restarts"),
            unit=units.Short,
            steps=True,
        ),
        graph(
            Text(
                "Traces lost",
                "Traced requests whose spans did not arrive. The collector is slow or absent, "
                "or too many requests are traced (--trace-ratio).",
            ),
            Query(f"sum by (instance) ({lost})", "{{instance}}"),
            unit=units.Short,
        ),
        graph(
            Text(
                "Requests recorded",
                "Requests chosen for --record, by outcome. written: in files. full: too many "
                "waited for the disk. unusual: not recordable. failed: the file could not be "
                "written; the log says why.",
            ),
            Query(f"sum by (instance, outcome) ({recorded})", "{{instance}} {{outcome}}"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "Clients dropped",
                "Connections, requests and calls that limits ended, by reason: too many, of one "
                "address or in sum; too slow; resets, pings and empty frames; or bytes of "
                "another protocol. See --max-connections and --http-max-connections.",
            ),
            Query(f"sum by (instance, reason) ({http})", "{{instance}} HTTP {{reason}}"),
            Query(f"sum by (instance, reason) ({grpc})", "{{instance}} gRPC {{reason}}"),
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
    small_pages = of_version("sharded_infer_table_page_bytes", 'page_size="4KiB"')
    return [
        graph(
            Text(
                "Processors",
                "Processor seconds a second by worker: 1 is a core. If it is far above the "
                "busy slots, decoding and encoding take the time: try --transport native.",
            ),
            Query(f"sum by (instance, worker) ({cpu})", "{{instance}} worker {{worker}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "Memory that is left",
                "Available memory of the machine or the container, whichever has less. Below "
                "10% the kernel reclaims pages of tables, so lookups read from disk; then it "
                "kills a process. A new version needs room beside the old one.",
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
                "Resident memory by worker. Mapped tables count in each worker that has read "
                "them, although they are shared. Growth without new versions is a leak: "
                "restart, and report it.",
            ),
            Query(f"sum by (instance, worker) ({resident})", "{{instance}} worker {{worker}}"),
            unit=units.BytesIEC,
        ),
        graph(
            Text(
                "Huge pages",
                "Huge pages of workers, and tables by the size of their pages when they were "
                "loaded. Lookups are slower from 4 KiB pages: the log and `sharded-infer doctor "
                "--folder` say what the machine gives.",
            ),
            Query(f"sum by (instance) ({huge})", "{{instance}} workers"),
            Query(f"max by (model, version) ({table_pages})", "{{model}} {{version}} tables"),
            Query(
                f"max by (model, version) ({small_pages})", "{{model}} {{version}} in small pages"
            ),
            unit=units.BytesIEC,
        ),
        graph(
            Text(
                "Tables",
                "Bytes of the tables of each loaded version; workers share them. Three lines "
                "of a model at once are a release in progress.",
            ),
            Query(f"max by (model, version) ({tables})", "{{model}} {{version}}"),
            unit=units.BytesIEC,
            stacked=True,
        ),
        graph(
            Text(
                "Minor page faults",
                "Minor page faults a second and a request, less than one a request in steady "
                "state. Many mean that tables are read for the first time or were reclaimed: "
                "use --memory huge, or add memory.",
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
                "above the rest limits all: see shards and skew.",
            ),
            Query(f"sum by (model, rank) ({busy})", "{{model}} rank {{rank}}"),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Tables placed, by rank",
                "Bytes that the plan puts on each rank. If they are near the rank's memory, "
                "plan again with `sharded-infer plan`, or use smaller row formats.",
            ),
            Query(f"max by (model, version, rank) ({memory})", "{{model}} {{version}} {{rank}}"),
            unit=units.BytesIEC,
            width=12,
            stacked=True,
        ),
    ]
