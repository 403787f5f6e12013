"""The queue and the batches that are formed of it."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.panels import Query, Text, dashed, graph, heatmap
from dashboards.selectors import of_version, quantile, rate


def queue_panels() -> list[Builder[Panel]]:
    """Requests that wait for a run slot."""
    waiting = f"sum by (model) ({of_version('sharded_infer_queue_requests')})"
    samples = f"sum by (model) ({of_version('sharded_infer_queue_samples')})"
    oldest = f"max by (model) ({of_version('sharded_infer_queue_oldest_seconds')})"
    objective = of_version("sharded_infer_latency_objective_seconds")
    seconds = "sharded_infer_queue_seconds"
    return [
        graph(
            Text(
                "Waiting",
                "Requests and samples that wait for a run slot. If they never return to zero, "
                "more requests come than are answered: add replicas, or let clients set "
                "deadlines.",
            ),
            Query(waiting, "{{model}} requests"),
            Query(samples, "{{model}} samples"),
            unit=units.Short,
        ),
        dashed(
            graph(
                Text(
                    "Age of the oldest",
                    "Age of the oldest waiting request. Above the dashed objective it is late "
                    "before it begins: lower --max-queue-requests.",
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
                "Wait of successful requests between decoding and the batch's start. If it is "
                "a large share of the latency on the service dashboard, the slots are the "
                "limit.",
            ),
            Query(quantile(0.5, seconds), "p50"),
            Query(quantile(0.99, seconds), "p99"),
            unit=units.Seconds,
        ),
    ]


def batch_panels() -> list[Builder[Panel]]:
    """What runs together."""
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
                "Requests in a batch. It is one while slots are free or batching is not worth "
                "it, and grows with the load.",
            ),
            buckets[0],
            unit=units.Short,
            width=8,
            decimals=0,
        ),
        heatmap(
            Text(
                "Samples of a batch",
                "Samples at which the tower runs. A second band far above the first is one "
                "client with large requests; others in its batches wait for them.",
            ),
            buckets[1],
            unit=units.Short,
            width=8,
            decimals=0,
        ),
        graph(
            Text(
                "Mean batch",
                "Mean requests and samples of a batch. If they fall at steady load, the cost "
                "table finds batching less worthwhile: see its error on the releases dashboard.",
            ),
            Query(means[0], "{{model}} requests"),
            Query(means[1], "{{model}} samples"),
            unit=units.Short,
        ),
    ]
