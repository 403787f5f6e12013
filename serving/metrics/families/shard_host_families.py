"""Families of a shard host, each with the host's number in the plans as a label."""

from functools import partial

from serving.metrics.families.family import Detail, counter, gauge, histogram
from serving.metrics.families.request_families import CODES
from serving.metrics.families.shard_families import SHARD_LOOKUP_SECONDS

HOST_LABELS = ("host",)

_counter = partial(counter, detail=Detail.OFF)
_version_gauge = partial(gauge, label="model, version", detail=Detail.OFF)

HOST_LOOKUPS = _counter(
    "sharded_infer_host_lookups",
    "Lookups of fronts, by gRPC status code.",
    "On call: lookups that the host refuses.",
    label="code",
    label_values=CODES,
    hidden_zeros=frozenset(CODES) - {"OK"},
)
HOST_LOOKUP_SECONDS = histogram(
    "sharded_infer_host_lookup_seconds",
    "Time of a lookup on the host, from when a thread takes it to its answer; of those that were "
    "answered.",
    "On call: beside the front's time of a lookup, whether the host or the network is slow.",
    boundaries=SHARD_LOOKUP_SECONDS.boundaries,
    detail=Detail.OFF,
)
HOST_ROWS = _counter(
    "sharded_infer_host_rows",
    "Rows that lookups read.",
    "Capacity planning: how evenly the plan spreads the rows over hosts and replicas.",
)
HOST_ROW_BYTES = _counter(
    "sharded_infer_host_row_bytes",
    "Stored bytes of the rows that lookups read.",
    "Capacity planning: share of the memory's bandwidth.",
)
HOST_RECEIVED_BYTES = _counter(
    "sharded_infer_host_received_bytes",
    "Bytes of the messages of lookups that were answered.",
    "Capacity planning: the network, from fronts.",
)
HOST_SENT_BYTES = _counter(
    "sharded_infer_host_sent_bytes",
    "Bytes of the answers to lookups.",
    "Capacity planning: the network, to fronts.",
)
HOST_VERSION_BYTES = _version_gauge(
    "sharded_infer_host_version_bytes",
    "Bytes of a version's rows that the host holds.",
    "Release owners: which replicas hold a version; capacity planning: memory.",
)
HOST_VERSION_LEASES = _version_gauge(
    "sharded_infer_host_version_leases",
    "Fronts that serve a version, as they said in the last 15 seconds.",
    "Release owners: an old version goes when no front serves it.",
)
HOST_FAMILIES = (
    HOST_LOOKUPS, HOST_LOOKUP_SECONDS, HOST_ROWS, HOST_ROW_BYTES, HOST_RECEIVED_BYTES,
    HOST_SENT_BYTES, HOST_VERSION_BYTES, HOST_VERSION_LEASES,
)  # fmt: skip
