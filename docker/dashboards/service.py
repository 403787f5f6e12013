"""The service as its users see it: rate, errors, duration."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, dashed, graph, heatmap, stat
from dashboards.selectors import of_server, of_version, quantile, rate

# The service's own failures, without clients' errors and cancellations.
FAILURES = 'code=~"INTERNAL|UNAVAILABLE|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED"'
_REQUESTS = rate(of_version("sharded_infer_requests_total"))
_FAILED = rate(of_version("sharded_infer_requests_total", FAILURES))
_FAILED_SHARE = f"(sum({_FAILED}) or vector(0)) / sum({_REQUESTS})"
_SUCCESSES = rate(of_version("sharded_infer_request_seconds_count"))
_WITHIN = rate(of_version("sharded_infer_requests_within_objective_total"))
_WITHIN_SHARE = f"sum({_WITHIN}) / sum({_SUCCESSES})"
# Grafana draws a query's exemplars once; beside one percentile is enough.
_EXEMPLARS_BESIDE = 0.99


def service_dashboard() -> Dashboard:
    """Success and speed of users' requests."""
    dashboard = framed(
        "sharded-infer-service",
        "sharded-infer: service",
        "Are users served, how fast, and if not, where does the time go?",
    )
    rows = {
        "At a glance": _at_a_glance(),
        "Rate and errors": _rate_and_errors(),
        "Latency": _latency(),
        "Where the time goes": _phases(),
    }
    return filled(dashboard, rows)


def _at_a_glance() -> list[Builder[Panel]]:
    return [
        stat(
            Text(
                "Requests a second",
                "Answered requests of any code. If it falls to zero, check Workers, then the "
                "clients and the load balancer.",
            ),
            Query(f"sum({_REQUESTS})", "requests"),
            unit=units.RequestsPerSecond,
        ),
        stat(
            Text(
                "Failed",
                "Share of requests that the service failed: INTERNAL, UNAVAILABLE, "
                "RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED. Red is ten times the objective of "
                "0.1%. Rate and errors shows the code.",
            ),
            Query(_FAILED_SHARE, "failed"),
            unit=units.PercentUnit,
            warn=0.001,
            bad=0.01,
        ),
        stat(
            Text(
                "Within the objective",
                "Share of successful requests within their model's latency objective. Below "
                "99%, see which phase grew under Where the time goes.",
            ),
            Query(_WITHIN_SHARE, "within"),
            unit=units.PercentUnit,
            warn=0.99,
            bad=0.95,
        ),
        stat(
            Text(
                "Median",
                "Half of the successful requests take less. It rises with the work in a "
                "request: compare with samples a request before you look for a fault.",
            ),
            Query(quantile(0.5, "sharded_infer_request_seconds"), "p50"),
            unit=units.Seconds,
        ),
        stat(
            Text(
                "p99",
                "One in a hundred successful requests takes longer. If it rises while the "
                "median does not, requests wait: see the queue on the resources dashboard.",
            ),
            Query(quantile(0.99, "sharded_infer_request_seconds"), "p99"),
            unit=units.Seconds,
        ),
        stat(
            Text(
                "Workers",
                "Processes that answer now, over all replicas. If there are fewer than you "
                "started, the supervisor's log has the signal that ended one.",
            ),
            Query(f"sum({of_server('sharded_infer_workers')})", "workers"),
            unit=units.Short,
            warn=1.0,
            bad=0.5,
        ),
    ]


def _rate_and_errors() -> list[Builder[Panel]]:
    by_version = f"sum by (model, version) ({_REQUESTS})"
    errors = rate(of_version("sharded_infer_requests_total", 'code!="OK"'))
    refused = rate(of_version("sharded_infer_requests_refused_total"))
    return [
        graph(
            Text(
                "Requests by version",
                "Answered requests by version. Model `unknown` counts calls that were refused "
                "unread, or that name a model that is not served. If it grows, the server is "
                "too small or a client is wrong.",
            ),
            Query(by_version, "{{model}} {{version}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Errors by code",
                "INVALID_ARGUMENT and NOT_FOUND are errors of clients. INTERNAL is an error of "
                "the server: the log has its id. RESOURCE_EXHAUSTED and DEADLINE_EXCEEDED mean "
                "overload: add replicas. UNAVAILABLE is normal for seconds while a replica "
                "starts or drains.",
            ),
            Query(f"sum by (code) ({errors})", "{{code}}"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "Refused, by reason",
                "Requests that were not run. queue_full: more come than are answered. "
                "deadline: it could not be met on arrival. expired: the deadline passed in the "
                "queue. cancelled: the client gave up, so its timeout may be shorter than the "
                "queue.",
            ),
            Query(f"sum by (reason) ({refused})", "{{reason}}"),
            unit=units.RequestsPerSecond,
        ),
    ]


def _latency() -> list[Builder[Panel]]:
    seconds = "sharded_infer_request_seconds"
    percentiles = [
        Query(quantile(share, seconds), name, exemplars=share == _EXEMPLARS_BESIDE)
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
    ]
    objective = of_version("sharded_infer_latency_objective_seconds")
    p99 = quantile(0.99, seconds, "model", "version")
    buckets = f"sum by (le) (increase({of_version(seconds + '_bucket')}[$__rate_interval]))"
    share = f"sum by (model) ({_WITHIN}) / sum by (model) ({_SUCCESSES})"
    return [
        dashed(
            graph(
                Text(
                    "Percentiles and the objective",
                    "Latency of successful requests over all replicas, to within a bucket. If "
                    "p99 is above the dashed line, more than one request in a hundred misses "
                    "the objective. Points are traced requests, with the trace id in the "
                    "tooltip.",
                ),
                *percentiles,
                Query(f"max({objective})", "objective"),
                unit=units.Seconds,
                width=12,
            ),
            "objective",
        ),
        heatmap(
            Text(
                "All latencies",
                "Requests by time and latency. Two bands are two kinds of requests, or a "
                "queue. If a band drifts upwards, requests become slower: compare with the "
                "version markers.",
            ),
            buckets,
            unit=units.Seconds,
        ),
        graph(
            Text(
                "p99 by version",
                "A new version with a higher line than the old one costs more: compare its "
                "plan and row formats with `sharded-infer repo diff`.",
            ),
            Query(p99, "{{model}} {{version}}"),
            unit=units.Seconds,
            width=12,
        ),
        graph(
            Text(
                "Within the objective, by model",
                "The base of the latency alerts. Below 99% the error budget burns too fast: "
                "see the phases below.",
            ),
            Query(share, "{{model}}"),
            unit=units.PercentUnit,
            width=12,
            warn=0.99,
            bad=0.95,
            most=1.0,
        ),
    ]


def _phases() -> list[Builder[Panel]]:
    phase = "sharded_infer_phase_seconds"
    queue = "sharded_infer_queue_seconds"
    mean = (
        f"sum by (phase) ({rate(of_version(phase + '_sum'))})"
        f" / sum by (phase) ({rate(of_version(phase + '_count'))})"
    )
    waited = f"sum({rate(of_version(queue + '_sum'))}) / sum({rate(of_version(queue + '_count'))})"
    slow = rate(of_version("sharded_infer_slow_requests_total"))
    samples = rate(of_version("sharded_infer_samples_total"))
    return [
        graph(
            Text(
                "Mean time of a request, by phase",
                "The areas add up to the time of a mean request. queue: too few slots for the "
                "load. lookup: memory, see shards and skew. tower: the dense part, see batch "
                "sizes. decode and encode: large or unusual messages.",
            ),
            Query(mean, "{{phase}}"),
            Query(waited, "queue"),
            unit=units.Seconds,
            width=12,
            stacked=True,
        ),
        graph(
            Text(
                "p99 by phase",
                "Percentiles do not add up. The phase whose line follows the total p99 is the "
                "one to improve.",
            ),
            Query(quantile(0.99, phase, "phase"), "{{phase}}"),
            Query(quantile(0.99, queue), "queue"),
            unit=units.Seconds,
            width=12,
        ),
        graph(
            Text(
                "Slow requests, by what was to blame",
                "Requests above the slow-request threshold. batch_mates: a large request in "
                "the same batch. page_faults: tables are not in memory. The log has a line for "
                "each.",
            ),
            Query(f"sum by (phase) ({slow})", "{{phase}}"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "In flight",
                "Requests being answered now, by replica. A replica far above the others gets "
                "more connections: see --max-connection-age. Near --max-concurrent-requests "
                "times workers, calls are refused unread.",
            ),
            Query(
                f"sum by (instance) ({of_server('sharded_infer_requests_in_flight')})",
                "{{instance}}",
            ),
            unit=units.Short,
        ),
        graph(
            Text(
                "Samples a second, and a request",
                "Samples scored, and samples a request. If both latency and samples a request "
                "rose, clients send larger requests; the server is not at fault.",
            ),
            Query(f"sum({samples})", "a second"),
            Query(f"sum({samples}) / sum({_SUCCESSES})", "a request"),
            unit=units.Short,
        ),
    ]
