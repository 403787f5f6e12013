"""A shard host's part of the metrics page."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from serving.metrics.families.page_series import add_series, metric_of
from serving.metrics.families.shard_host_families import (
    HOST_FAMILIES,
    HOST_LABELS,
    HOST_LOOKUP_SECONDS,
    HOST_LOOKUPS,
    HOST_RECEIVED_BYTES,
    HOST_ROW_BYTES,
    HOST_ROWS,
    HOST_SENT_BYTES,
    HOST_VERSION_BYTES,
    HOST_VERSION_LEASES,
)
from serving.shard_host.held_shares import HeldShares
from serving.shard_host.lookup_counts import LookupCounter
from serving.status import StatusCode


class HostPage(Collector):
    """Reads shares and counts when the page is requested."""

    def __init__(self, host: int, shares: HeldShares, counter: LookupCounter) -> None:
        """Read nothing yet; `counter` counts lookups that compiled code leaves to Python."""
        self._host, self._shares, self._counter = str(host), shares, counter

    def describe(self) -> Iterable[Metric]:
        """All families, without samples."""
        return [metric_of(family, HOST_LABELS) for family in HOST_FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """All families, with their samples."""
        by_python, refused = self._counter.read()
        counts = by_python + self._shares.compiled.counts()
        refused[StatusCode.OK] = counts.lookups
        series: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {
            HOST_LOOKUPS.name: [((code.name,), [refused[code]]) for code in StatusCode],
            HOST_LOOKUP_SECONDS.name: [((), [*counts.buckets, counts.seconds])],
            HOST_ROWS.name: [((), [counts.rows])],
            HOST_ROW_BYTES.name: [((), [counts.row_bytes])],
            HOST_RECEIVED_BYTES.name: [((), [counts.received_bytes])],
            HOST_SENT_BYTES.name: [((), [counts.sent_bytes])],
            HOST_VERSION_BYTES.name: [],
            HOST_VERSION_LEASES.name: [],
        }
        for held in self._shares.all():
            labels: tuple[str, ...] = (held.key.model, str(held.key.version))
            series[HOST_VERSION_BYTES.name].append((labels, [held.share.table_bytes]))
            leases = self._shares.leases(held.key)
            series[HOST_VERSION_LEASES.name].append((labels, [leases]))
        for family in HOST_FAMILIES:
            metric = metric_of(family, HOST_LABELS)
            for labels, values in series[family.name]:
                add_series(metric, family, (self._host, *labels), values)
            yield metric
