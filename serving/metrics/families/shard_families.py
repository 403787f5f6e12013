"""Families of a front's lookups on shard hosts."""

from serving.metrics.families.family import Family, Kind

# Later hosts share the last place.
HOST_PLACES = tuple(str(place) for place in range(64))
LOST_CODES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")

SHARD_LOOKUP_SECONDS = Family(
    "sharded_infer_shard_lookup_seconds",
    "Time of a batch's lookup on a shard host, from asking to its first good answer; lookups that "
    "failed are not in it.",
    Kind.HISTOGRAM,
    "On call: which shard host is slow. Its count is the rate of lookups.",
    label="host",
    label_values=HOST_PLACES,
    boundaries=(
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    ),
)  # fmt: skip
SHARD_HEDGES = Family(
    "sharded_infer_shard_hedges",
    "Lookups that were late and were asked of another replica too; at most a twentieth of all.",
    Kind.COUNTER,
    "On call: a replica of this shard host is slow at times.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_RETRIES = Family(
    "sharded_infer_shard_retries",
    "Lookups that were asked of another replica because one failed or was ejected.",
    Kind.COUNTER,
    "On call: failures that cost no request.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_FAILURES = Family(
    "sharded_infer_shard_failures",
    "Calls of replicas that ended with an error, or with no answer at their deadlines.",
    Kind.COUNTER,
    "On call: above the retries, lookups were lost.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_LOST_LOOKUPS = Family(
    "sharded_infer_shard_lost_lookups",
    "Lookups that failed their batch. UNAVAILABLE: no replica was left to ask; DEADLINE_EXCEEDED: "
    "none answered before the deadline.",
    Kind.COUNTER,
    "On call: requests fail because of this shard host.",
    label="host, code",
    label_values=tuple(f"{host}, {code}" for host in HOST_PLACES for code in LOST_CODES),
)
SHARD_EJECTIONS = Family(
    "sharded_infer_shard_ejections",
    "Replicas that were left alone after failures in a row, as each process saw it.",
    Kind.COUNTER,
    "On call: a replica of this shard host has died or hangs.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_DEFAULT_ROWS = Family(
    "sharded_infer_shard_default_rows",
    "Rows that no replica could look up and for which their tables' default rows stood; the "
    "responses name the tables.",
    Kind.COUNTER,
    "On call: this shard host is lost, and scores are made without what it holds.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_SENT_BYTES = Family(
    "sharded_infer_shard_sent_bytes",
    "Bytes of the messages of lookups that were answered, hedges and retries among them.",
    Kind.COUNTER,
    "Capacity planning: the network, to this shard host.",
    label="host",
    label_values=HOST_PLACES,
)
SHARD_RECEIVED_BYTES = Family(
    "sharded_infer_shard_received_bytes",
    "Bytes of the answers to lookups.",
    Kind.COUNTER,
    "Capacity planning: the network, from this shard host.",
    label="host",
    label_values=HOST_PLACES,
)
# The page shows a host's series once it was called; its lookups come first.
SHARD_FAMILIES = (
    SHARD_LOOKUP_SECONDS,
    SHARD_HEDGES,
    SHARD_RETRIES,
    SHARD_FAILURES,
    SHARD_LOST_LOOKUPS,
    SHARD_EJECTIONS,
    SHARD_DEFAULT_ROWS,
    SHARD_SENT_BYTES,
    SHARD_RECEIVED_BYTES,
)
