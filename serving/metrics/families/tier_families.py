"""Metric families of tables with rows in tiers: in memory, and in files (--row-memory-mib)."""

from kernels.tiers.row_tier import LATENCIES
from serving.metrics.families.family import Detail, gauge, histogram
from serving.metrics.families.model_families import counter_of_table, gauge_of_table

IDS_PINNED = counter_of_table(
    "sharded_infer_ids_pinned",
    "Ids whose rows are pinned in memory, of tables with rows in tiers.",
    "Dashboards and alerts: beside ids_cached and ids_read, the hit rate.",
)
IDS_CACHED = counter_of_table(
    "sharded_infer_ids_cached",
    "Ids whose rows were in the cache, of tables with rows in tiers.",
    "Dashboards and alerts: beside ids_pinned and ids_read, the hit rate.",
)
IDS_READ = counter_of_table(
    "sharded_infer_ids_read",
    "Ids whose rows were read from the table's file, or were on their way.",
    "Alerts: its share rises when the use of rows has drifted from the order of the version.",
)
ROW_READS = counter_of_table(
    "sharded_infer_row_reads",
    "Reads of rows from the table's file; rows beside each other are one.",
    "Capacity planning: what the disk does for each table.",
)
ROW_READ_BYTES = counter_of_table(
    "sharded_infer_row_read_bytes",
    "Bytes of the reads of rows.",
    "Capacity planning: the disk's bandwidth.",
)
ROW_READS_FAILED = counter_of_table(
    "sharded_infer_row_reads_failed",
    "Reads of rows that failed.",
    "On call: requests that needed these rows were answered with UNAVAILABLE.",
)
ROW_MEMORY_BYTES = gauge_of_table(
    "sharded_infer_row_memory_bytes",
    "Bytes of the rows in memory, pinned and cached, over all workers.",
    "Capacity planning: what --row-memory-mib is used for.",
)
ROW_READ_SECONDS = histogram(
    "sharded_infer_row_read_seconds",
    "Time of a read of rows, with its wait for a place in the queue.",
    "On call: whether the disk, or the queue for it, is what requests wait for.",
    boundaries=LATENCIES,
    detail=Detail.FULL,
)
ROW_READS_QUEUED = gauge(
    "sharded_infer_row_reads_queued",
    "Reads of rows that wait for the disk or are with it, over all workers.",
    "On call: more than 128 a worker wait for others.",
    detail=Detail.FULL,
)

TIER_FAMILIES = (
    IDS_PINNED, IDS_CACHED, IDS_READ, ROW_READS, ROW_READ_BYTES, ROW_READS_FAILED,
    ROW_MEMORY_BYTES, ROW_READ_SECONDS, ROW_READS_QUEUED,
)  # fmt: skip
