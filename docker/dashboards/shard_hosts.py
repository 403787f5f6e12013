"""Panels of shard hosts: from the fronts that call them, and from their own pages."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.panels import Query, Text, graph
from dashboards.selectors import of_server, of_version, rate

_LOOKUPS = rate(of_server("sharded_infer_shard_lookup_seconds_count"))
_BUCKETS = rate(of_server("sharded_infer_shard_lookup_seconds_bucket"))
_LOST = rate(of_server("sharded_infer_shard_lost_lookups_total"))
_OWN_BUCKETS = rate(of_server("sharded_infer_host_lookup_seconds_bucket"))


def seen_by_fronts() -> list[Builder[Panel]]:
    """Empty where no front calls shard hosts."""
    return [
        graph(
            Text(
                "Lookups, by shard host",
                "Batches that fronts looked up, by the host's number in the plan. Bands differ "
                "only where versions have different plans.",
            ),
            Query(f"sum by (host) ({_LOOKUPS})", "host {{host}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "p99 of lookups, by shard host",
                "From asking to the first good answer, as fronts see it. A batch waits for all "
                "hosts, so the slowest one is what it costs. If one stands out, it has more bytes "
                "or a slower machine.",
            ),
            Query(f"histogram_quantile(0.99, sum by (host, le) ({_BUCKETS}))", "host {{host}}"),
            unit=units.Seconds,
        ),
        graph(
            Text(
                "Lookups asked twice, and failures",
                "Hedges are late lookups that another replica was asked too; retries are failed "
                "ones. An ejected replica is dead or hangs: `sharded-infer cluster status`.",
            ),
            Query(_by_host("sharded_infer_shard_hedges_total"), "host {{host}} hedges"),
            Query(_by_host("sharded_infer_shard_retries_total"), "host {{host}} retries"),
            Query(_by_host("sharded_infer_shard_failures_total"), "host {{host}} failures"),
            Query(_by_host("sharded_infer_shard_ejections_total"), "host {{host}} ejections"),
            unit=units.RequestsPerSecond,
        ),
        graph(
            Text(
                "Lost lookups, by shard host",
                "Lookups that failed their batch. UNAVAILABLE: no replica was left to ask. "
                "DEADLINE_EXCEEDED: none answered in time. Where default rows stand for a lost "
                "host, they are counted instead.",
            ),
            Query(
                f"sum by (host, code) ({_LOST})",
                "host {{host}} {{code}}",
            ),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Bytes of lookups, by shard host",
                "Messages to and from each host, hedges and retries among them. Compare their sum "
                "with the network's bandwidth of a front. `sharded-infer plan` estimates it.",
            ),
            Query(_by_host("sharded_infer_shard_sent_bytes_total"), "host {{host}} sent"),
            Query(_by_host("sharded_infer_shard_received_bytes_total"), "host {{host}} received"),
            unit=units.BytesPerSecondIEC,
        ),
        graph(
            Text(
                "Default rows, by shard host",
                "Rows of a lost host for which their tables' default rows stood. The responses "
                "name the tables; scores are worse until the host is back. Tables without a "
                "default row fail their requests instead.",
            ),
            Query(_by_host("sharded_infer_shard_default_rows_total"), "host {{host}}"),
            unit=units.ReadsPerSecond,
            stacked=True,
        ),
    ]


def seen_by_hosts() -> list[Builder[Panel]]:
    """Empty where no shard host is scraped."""
    held = of_version("sharded_infer_host_version_bytes")
    leases = of_version("sharded_infer_host_version_leases")
    by_code = f"sum by (host, code) ({rate(of_server('sharded_infer_host_lookups_total'))})"
    return [
        graph(
            Text(
                "p99 of lookups, within the host",
                "From when a thread takes a lookup to its answer. What fronts wait for beyond "
                "this is the network, and lookups that wait for a thread: `--slots`.",
            ),
            Query(f"histogram_quantile(0.99, sum by (host, le) ({_OWN_BUCKETS}))", "host {{host}}"),
            unit=units.Seconds,
        ),
        graph(
            Text(
                "Lookups answered and refused",
                "By host and code. NOT_FOUND: a front asks for a version that the host does not "
                "hold, which another replica answers. INVALID_ARGUMENT: their releases differ.",
            ),
            Query(by_code, "host {{host}} {{code}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Rows looked up, by shard host",
                "Uneven bands mean that the plan does not fit the traffic: plan again with "
                "samples.",
            ),
            Query(_by_host("sharded_infer_host_rows_total"), "host {{host}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "Bytes, by shard host",
                "Stored bytes of the rows, and bytes of messages from and to fronts. Compare the "
                "first with the memory's bandwidth and the others with the network's.",
            ),
            Query(_by_host("sharded_infer_host_row_bytes_total"), "host {{host}} rows"),
            Query(_by_host("sharded_infer_host_received_bytes_total"), "host {{host}} received"),
            Query(_by_host("sharded_infer_host_sent_bytes_total"), "host {{host}} sent"),
            unit=units.BytesPerSecondIEC,
        ),
        graph(
            Text(
                "Versions held",
                "Bytes of each version's rows, over a host's replicas. While versions change, a "
                "host holds one more.",
            ),
            Query(
                f"sum by (host, model, version) ({held})", "host {{host}}: {{model}} {{version}}"
            ),
            unit=units.BytesIEC,
            stacked=True,
        ),
        graph(
            Text(
                "Fronts that serve a version",
                "By the replica that fewest tell. An old version goes when none does: one that "
                "stays is served by a front that does not follow.",
            ),
            Query(
                f"min by (host, model, version) ({leases})", "host {{host}}: {{model}} {{version}}"
            ),
            unit=units.Short,
        ),
    ]


def _by_host(counter: str) -> str:
    return f"sum by (host) ({rate(of_server(counter))})"
