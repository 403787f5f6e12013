"""Metric families of tables with rows in tiers: in memory, and in files (--row-memory-mib)."""

from kernels.tiers.row_tier import LATENCIES
from serving.metrics.families.family import Detail, Family, Kind
from serving.metrics.families.model_families import NAMED_PLACES, OTHERS


def _of_table(name: str, text: str, readers: str, kind: Kind = Kind.COUNTER) -> Family:
    return Family(
        f"sharded_infer_{name}",
        text,
        kind,
        readers,
        label="table",
        label_values=NAMED_PLACES,
        hidden_zeros=frozenset({OTHERS}),
        detail=Detail.FULL,
    )


IDS_PINNED = _of_table(
    "ids_pinned",
    "Ids whose rows are pinned in memory, of tables with rows in tiers.",
    "Dashboards and alerts: beside ids_cached and ids_read, the hit rate.",
)
IDS_CACHED = _of_table(
    "ids_cached",
    "Ids whose rows were in the cache, of tables with rows in tiers.",
    "Dashboards and alerts: beside ids_pinned and ids_read, the hit rate.",
)
IDS_READ = _of_table(
    "ids_read",
    "Ids whose rows were read from the table's file, or were on their way.",
    "Alerts: its share rises when the use of rows has drifted from the order of the version.",
)
ROW_READS = _of_table(
    "row_reads",
    "Reads of rows from the table's file; rows beside each other are one.",
    "Capacity planning: what the disk does for each table.",
)
ROW_READ_BYTES = _of_table(
    "row_read_bytes",
    "Bytes of the reads of rows.",
    "Capacity planning: the disk's bandwidth.",
)
ROW_READS_FAILED = _of_table(
    "row_reads_failed",
    "Reads of rows that failed.",
    "On call: requests that needed these rows were answered with UNAVAILABLE.",
)
ROW_MEMORY_BYTES = _of_table(
    "row_memory_bytes",
    "Bytes of the rows in memory, pinned and cached, over all workers.",
    "Capacity planning: what --row-memory-mib is used for.",
    Kind.GAUGE,
)
ROW_READ_SECONDS = Family(
    "sharded_infer_row_read_seconds",
    "Time of a read of rows, with its wait for a place in the queue.",
    Kind.HISTOGRAM,
    "On call: whether the disk, or the queue for it, is what requests wait for.",
    boundaries=LATENCIES,
    detail=Detail.FULL,
)
ROW_READS_QUEUED = Family(
    "sharded_infer_row_reads_queued",
    "Reads of rows that wait for the disk or are with it, over all workers.",
    Kind.GAUGE,
    "On call: more than 128 a worker wait for others.",
    detail=Detail.FULL,
)

TIER_FAMILIES = (
    IDS_PINNED,
    IDS_CACHED,
    IDS_READ,
    ROW_READS,
    ROW_READ_BYTES,
    ROW_READS_FAILED,
    ROW_MEMORY_BYTES,
    ROW_READ_SECONDS,
    ROW_READS_QUEUED,
)
