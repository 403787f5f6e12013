"""Shards and skew: how evenly the plan spreads the work, and how hot the rows are."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, graph, heatmap, stat
from dashboards.selectors import of_version, rate
from dashboards.sequences import sequences_and_users
from dashboards.shard_hosts import seen_by_fronts, seen_by_hosts
from dashboards.tiers import tables_larger_than_memory

_ROWS = rate(of_version("sharded_infer_rank_rows_total"))
_BYTES = rate(of_version("sharded_infer_rank_row_bytes_total"))
_BUSY = rate(of_version("sharded_infer_rank_busy_seconds_total"))
_SAVED = rate(of_version("sharded_infer_broadcast_rows_saved_total"))
_MEMORY = of_version("sharded_infer_rank_memory_bytes")
_HOT = of_version("sharded_infer_hot_row_share")
_LOOKUP = 'phase="lookup"'
_BALANCED, _SKEWED = 1.2, 1.5


def shards_dashboard() -> Dashboard:
    """Fit of the plan to the traffic."""
    dashboard = framed(
        "sharded-infer-shards",
        "sharded-infer: shards and skew",
        "Does the plan spread the traffic evenly over the ranks, would caching hot rows help, and "
        "do the shard hosts answer in time?",
    )
    rows = {
        "At a glance": _at_a_glance(),
        "Work by rank": _work(),
        "Balance": _balance(),
        "Skew": _skew(),
        "Sequences and users": sequences_and_users(),
        "Tables larger than memory": tables_larger_than_memory(),
        "Shard hosts, as fronts see them": seen_by_fronts(),
        "Shard hosts, as they see themselves": seen_by_hosts(),
    }
    return filled(dashboard, rows)


def _imbalance(summed: str) -> str:
    """The largest rank's share over the mean share, by version; 1 is even."""
    by_rank = f"sum by (model, version, rank) ({summed})"
    return f"max by (model, version) ({by_rank}) / avg by (model, version) ({by_rank})"


def _gain(by: str) -> str:
    rows, saved = f"sum{by} ({_ROWS})", f"sum{by} ({_SAVED})"
    return f"({rows} + {saved}) / {rows}"


def _at_a_glance() -> list[Builder[Panel]]:
    return [
        stat(
            Text(
                "Rows a second",
                "Rows looked up, over all ranks and replicas. `sharded-infer bench lookup` "
                "measures the machine's limit.",
            ),
            Query(f"sum({_ROWS})", "rows"),
            unit=units.Short,
            width=5,
        ),
        stat(
            Text(
                "Bytes a second",
                "Stored bytes of those rows. Near the memory's bandwidth, smaller row formats "
                "help: see `sharded-infer quantize --dry-run`.",
            ),
            Query(f"sum({_BYTES})", "bytes"),
            unit=units.BytesPerSecondIEC,
            width=5,
        ),
        stat(
            Text(
                "Imbalance of rows",
                "The busiest rank's rows over the mean rank's, of the worst version. Above 1.5 "
                "the ranks wait for one: plan again with `sharded-infer plan --samples`.",
            ),
            Query(f"max({_imbalance(_ROWS)})", "imbalance"),
            unit=units.Short,
            width=5,
            warn=_BALANCED,
            bad=_SKEWED,
            decimals=2,
        ),
        stat(
            Text(
                "Hot rows",
                "Share of row accesses that go to the hottest 1% of the rows. If it is high, "
                "replicating or caching those rows helps. 1% means that no rows are hot.",
            ),
            Query(f"max by (model) ({_HOT})", "{{model}}"),
            unit=units.PercentUnit,
            width=5,
        ),
        stat(
            Text(
                "Broadcast gain",
                "Rows without sharing a request's common features, over rows with sharing. If "
                "it is 1 on ranking traffic, clients repeat the user for each candidate: send "
                "it once.",
            ),
            Query(_gain(""), "gain"),
            unit=units.Short,
            decimals=2,
        ),
    ]


def _work() -> list[Builder[Panel]]:
    legend = "{{model}} rank {{rank}}"
    return [
        graph(
            Text(
                "Rows, by rank",
                "Even bands mean that the plan fits. If one band grows alone, a feature's "
                "traffic has changed since the plan was made.",
            ),
            Query(f"sum by (model, rank) ({_ROWS})", legend),
            unit=units.ReadsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Bytes, by rank",
                "Bytes that lookups read. If they are uneven while rows are even, wide or less "
                "quantized tables lie on one rank.",
            ),
            Query(f"sum by (model, rank) ({_BYTES})", legend),
            unit=units.BytesPerSecondIEC,
            stacked=True,
        ),
        graph(
            Text(
                "Lookup time, by rank",
                "Seconds a second. If they are uneven while rows and bytes are even, the "
                "rank's memory is slower, cold, or shared with others.",
            ),
            Query(f"sum by (model, rank) ({_BUSY})", legend),
            unit=units.Short,
            stacked=True,
        ),
    ]


def _balance() -> list[Builder[Panel]]:
    placed = f"max by (model, version, rank) ({_MEMORY})"
    memory = f"max by (model, version) ({placed}) / avg by (model, version) ({placed})"
    buckets = rate(of_version("sharded_infer_phase_seconds_bucket", _LOOKUP))
    return [
        graph(
            Text(
                "Imbalance: largest over mean",
                "1 is even. The alert is at 1.5 of rows. A plan that evens out time may leave "
                "memory uneven on purpose.",
            ),
            Query(_imbalance(_ROWS), "{{model}} {{version}} rows"),
            Query(_imbalance(_BYTES), "{{model}} {{version}} bytes"),
            Query(_imbalance(_BUSY), "{{model}} {{version}} time"),
            Query(memory, "{{model}} {{version}} memory"),
            unit=units.Short,
            width=12,
            warn=_BALANCED,
            bad=_SKEWED,
        ),
        graph(
            Text(
                "Tables placed, by rank",
                "Bytes that the plan puts on each rank. `sharded-infer plan --from-plan` shows "
                "the plan.",
            ),
            Query(placed, "{{model}} {{version}} rank {{rank}}"),
            unit=units.BytesIEC,
            width=6,
            stacked=True,
        ),
        graph(
            Text(
                "p99 of lookups",
                "The cost of imbalance, since a request needs all ranks. If it does not follow "
                "the imbalance, leave the plan as it is.",
            ),
            Query(f"histogram_quantile(0.99, sum by (le) ({buckets}))", "p99"),
            unit=units.Seconds,
            width=6,
        ),
    ]


def _skew() -> list[Builder[Panel]]:
    lookups = of_version("sharded_infer_phase_seconds_bucket", _LOOKUP)
    return [
        graph(
            Text(
                "Hot-row share",
                "Share of sampled accesses that go to the hottest 1% of rows. If it falls, "
                "caches help less and lookups slow down. If it rises, fewer rows carry the "
                "traffic.",
            ),
            Query(f"max by (model, version) ({_HOT})", "{{model}} {{version}}"),
            unit=units.PercentUnit,
            most=1.0,
        ),
        graph(
            Text(
                "Broadcast gain",
                "(rows looked up + rows saved) / rows looked up. If it falls, a client no "
                "longer sends shared features once.",
            ),
            Query(_gain(" by (model, version)"), "{{model}} {{version}}"),
            unit=units.Short,
        ),
        heatmap(
            Text(
                "Lookup times",
                "Times of all lookups. A second band above the first is rows from memory "
                "instead of the cache, or from disk: see minor page faults.",
            ),
            f"sum by (le) (increase({lookups}[$__rate_interval]))",
            unit=units.Seconds,
            width=8,
        ),
    ]
