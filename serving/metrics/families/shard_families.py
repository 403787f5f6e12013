"""Families of a front's lookups on shard hosts."""

from functools import partial

from serving.metrics.families.family import counter, histogram

# Later hosts share the last place.
HOST_PLACES = tuple(str(place) for place in range(64))
LOST_CODES = ("UNAVAILABLE", "DEADLINE_EXCEEDED")

SHARD_LOOKUP_SECONDS = histogram(
    "sharded_infer_shard_lookup_seconds",
    "Time of a batch's lookup on a shard host, from asking to its first good answer; lookups that "
    "failed are not in it.",
    "On call: which shard host is slow. Its count is the rate of lookups.",
    label="host",
    label_values=HOST_PLACES,
    boundaries=(
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    ),
)  # fmt: skip
_of_host = partial(counter, label="host", label_values=HOST_PLACES)
SHARD_HEDGES = _of_host(
    "sharded_infer_shard_hedges",
    "Lookups that were late and were asked of another replica too; at most a twentieth of all.",
    "On call: a replica of this shard host is slow at times.",
)
SHARD_RETRIES = _of_host(
    "sharded_infer_shard_retries",
    "Lookups that were asked of another replica because one failed or was ejected.",
    "On call: failures that cost no request.",
)
SHARD_FAILURES = _of_host(
    "sharded_infer_shard_failures",
    "Calls of replicas that ended with an error, or with no answer at their deadlines.",
    "On call: above the retries, lookups were lost.",
)
SHARD_LOST_LOOKUPS = counter(
    "sharded_infer_shard_lost_lookups",
    "Lookups that failed their batch. UNAVAILABLE: no replica was left to ask; DEADLINE_EXCEEDED: "
    "none answered before the deadline.",
    "On call: requests fail because of this shard host.",
    label="host, code",
    label_values=tuple(f"{host}, {code}" for host in HOST_PLACES for code in LOST_CODES),
)
SHARD_EJECTIONS = _of_host(
    "sharded_infer_shard_ejections",
    "Replicas that were left alone after failures in a row, as each process saw it.",
    "On call: a replica of this shard host has died or hangs.",
)
SHARD_DEFAULT_ROWS = _of_host(
    "sharded_infer_shard_default_rows",
    "Rows that no replica could look up and for which their tables' default rows stood; the "
    "responses name the tables.",
    "On call: this shard host is lost, and scores are made without what it holds.",
)
SHARD_SENT_BYTES = _of_host(
    "sharded_infer_shard_sent_bytes",
    "Bytes of the messages of lookups that were answered, hedges and retries among them.",
    "Capacity planning: the network, to this shard host.",
)
SHARD_RECEIVED_BYTES = _of_host(
    "sharded_infer_shard_received_bytes",
    "Bytes of the answers to lookups.",
    "Capacity planning: the network, from this shard host.",
)
# The page shows a host's series once it was called; its lookups come first.
SHARD_FAMILIES = (
    SHARD_LOOKUP_SECONDS, SHARD_HEDGES, SHARD_RETRIES, SHARD_FAILURES, SHARD_LOST_LOOKUPS,
    SHARD_EJECTIONS, SHARD_DEFAULT_ROWS, SHARD_SENT_BYTES, SHARD_RECEIVED_BYTES,
)  # fmt: skip
