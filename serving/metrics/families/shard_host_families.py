"""Families of a shard host, each with the host's number in the plans as a label."""

from serving.metrics.families.family import Detail, Family, Kind
from serving.metrics.families.request_families import CODES
from serving.metrics.families.shard_families import SHARD_LOOKUP_SECONDS

HOST_LABELS = ("host",)

HOST_LOOKUPS = Family(
    "sharded_infer_host_lookups",
    "Lookups of fronts, by gRPC status code.",
    Kind.COUNTER,
    "On call: lookups that the host refuses.",
    label="code",
    label_values=CODES,
    hidden_zeros=frozenset(CODES) - {"OK"},
    detail=Detail.OFF,
)
HOST_LOOKUP_SECONDS = Family(
    "sharded_infer_host_lookup_seconds",
    "Time of a lookup on the host, from when a thread takes it to its answer; of those that were "
    "answered.",
    Kind.HISTOGRAM,
    "On call: beside the front's time of a lookup, whether the host or the network is slow.",
    boundaries=SHARD_LOOKUP_SECONDS.boundaries,
    detail=Detail.OFF,
)
HOST_ROWS = Family(
    "sharded_infer_host_rows",
    "Rows that lookups read.",
    Kind.COUNTER,
    "Capacity planning: how evenly the plan spreads the rows over hosts and replicas.",
    detail=Detail.OFF,
)
HOST_ROW_BYTES = Family(
    "sharded_infer_host_row_bytes",
    "Stored bytes of the rows that lookups read.",
    Kind.COUNTER,
    "Capacity planning: share of the memory's bandwidth.",
    detail=Detail.OFF,
)
HOST_RECEIVED_BYTES = Family(
    "sharded_infer_host_received_bytes",
    "Bytes of the messages of lookups that were answered.",
    Kind.COUNTER,
    "Capacity planning: the network, from fronts.",
    detail=Detail.OFF,
)
HOST_SENT_BYTES = Family(
    "sharded_infer_host_sent_bytes",
    "Bytes of the answers to lookups.",
    Kind.COUNTER,
    "Capacity planning: the network, to fronts.",
    detail=Detail.OFF,
)
HOST_VERSION_BYTES = Family(
    "sharded_infer_host_version_bytes",
    "Bytes of a version's rows that the host holds.",
    Kind.GAUGE,
    "Release owners: which replicas hold a version; capacity planning: memory.",
    label="model, version",
    detail=Detail.OFF,
)
HOST_VERSION_LEASES = Family(
    "sharded_infer_host_version_leases",
    "Fronts that serve a version, as they said in the last 15 seconds.",
    Kind.GAUGE,
    "Release owners: an old version goes when no front serves it.",
    label="model, version",
    detail=Detail.OFF,
)
HOST_FAMILIES = (
    HOST_LOOKUPS,
    HOST_LOOKUP_SECONDS,
    HOST_ROWS,
    HOST_ROW_BYTES,
    HOST_RECEIVED_BYTES,
    HOST_SENT_BYTES,
    HOST_VERSION_BYTES,
    HOST_VERSION_LEASES,
)
