"""Panels of tables larger than memory: share of rows in memory, and disk reads."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.panels import Query, Text, graph
from dashboards.selectors import of_version, quantile, rate


def _by_table(name: str) -> str:
    return f"sum by (model, table) ({rate(of_version(f'sharded_infer_{name}'))})"


_IDS = " + ".join(_by_table(f"ids_{tier}_total") for tier in ("pinned", "cached", "read"))


def tables_larger_than_memory() -> list[Builder[Panel]]:
    """Row of a dashboard."""
    return [
        graph(
            Text(
                "Ids whose rows were in memory",
                "Share of a table's ids, pinned rows and cached ones. If it falls, use has drifted "
                "from the order of the version: publish again with `--order-rows frequency`.",
            ),
            *(
                Query(
                    f"{_by_table(f'ids_{tier}_total')} / clamp_min({_IDS}, 1e-9)",
                    f"{{{{model}}}} {{{{table}}}} {tier}",
                )
                for tier in ("pinned", "cached")
            ),
            unit=units.PercentUnit,
            stacked=True,
        ),
        graph(
            Text(
                "Reads of rows",
                "Reads a second from tables' files, and failed ones; rows that lie beside each "
                "other are one read.",
            ),
            Query(_by_table("row_reads_total"), "{{model}} {{table}}"),
            Query(_by_table("row_reads_failed_total"), "{{model}} {{table}} failed"),
            unit=units.Short,
        ),
        graph(
            Text(
                "Time of a read of rows",
                "With the wait for a place in the queue. Requests whose rows are not in memory "
                "wait for the slowest of their reads.",
            ),
            *(
                Query(
                    quantile(q, "sharded_infer_row_read_seconds", "model"),
                    f"{{{{model}}}} p{q * 100:g}",
                )
                for q in (0.5, 0.99)
            ),
            unit=units.Seconds,
        ),
        graph(
            Text(
                "Reads of rows that wait",
                "For the disk or at it. A worker has at most 128 reads at the disk at once.",
            ),
            Query(f"sum by (model) ({of_version('sharded_infer_row_reads_queued')})", "{{model}}"),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Rows in memory and read",
                "Bytes of pinned and cached rows over all workers, and bytes read a second.",
            ),
            Query(
                f"sum by (model, version) ({of_version('sharded_infer_row_memory_bytes')})",
                "{{model}} {{version}} in memory",
            ),
            Query(
                f"sum by (model) ({rate(of_version('sharded_infer_row_read_bytes_total'))})",
                "{{model}} read a second",
            ),
            unit=units.BytesSI,
            width=12,
        ),
    ]
