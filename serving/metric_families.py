"""What the server measures: every metric family, declared once, and where its cells lie."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

import grpc

# 100 µs to 1 s, each boundary about 1.5 times the one before, so that a quantile read off a
# dashboard is within 25% of the truth anywhere in the range.
LATENCY_BOUNDARIES = (
    0.0001, 0.00015, 0.00025, 0.0004, 0.0006, 0.001, 0.0015, 0.0025, 0.004, 0.006,
    0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.4, 0.6, 1.0,
)  # fmt: skip
BATCH_SAMPLES_BOUNDARIES = tuple(float(1 << power) for power in range(17))
BATCH_REQUESTS_BOUNDARIES = tuple(float(1 << power) for power in range(11))
PHASES = ("decode", "lookup", "tower", "encode")
CODES = tuple(code.name for code in grpc.StatusCode)
# Of loading a version: fetched and verified, checked against memory, opened, warmed up, checked
# against its golden requests; and until the last worker has done so.
LOAD_PHASES = ("fetch", "verify", "memory", "open", "warm_up", "golden", "workers")
REFUSALS = ("queue_full", "deadline", "cancelled", "expired")


class Kind(StrEnum):
    """How a family's cells make up its samples on the page."""

    COUNTER = "counter"
    GAUGE = "gauge"
    # A gauge that is the largest of the processes' values instead of their sum.
    LARGEST = "largest"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family.

    Attributes:
        name: as on the page, without `_total`.
        help: one sentence.
        kind: how its samples are made.
        label: the label beside those of its block; its values are known beforehand.
        label_values: one series each.
        hidden_zeros: of those, the ones that are shown only once they are counted.
        boundaries: a histogram's, each included in its bucket.
    """

    name: str
    help: str
    kind: Kind
    label: str = ""
    label_values: tuple[str, ...] = ("",)
    hidden_zeros: frozenset[str] = frozenset()
    boundaries: tuple[float, ...] = ()

    @property
    def cells_per_series(self) -> int:
        """A histogram's buckets, with the one above all boundaries, and its sum; or one."""
        return len(self.boundaries) + 2 if self.kind is Kind.HISTOGRAM else 1

    @property
    def cells(self) -> int:
        """The cells of all series."""
        return len(self.label_values) * self.cells_per_series


@dataclass(frozen=True, slots=True)
class FamilyBlock:
    """Families whose cells lie side by side, under common values of the block's labels.

    Attributes:
        families: in the cells' order.
        label_values: of the labels that all series of the block have.
        first: the first cell.
    """

    families: tuple[Family, ...]
    label_values: tuple[str, ...]
    first: int

    def series(self) -> Iterator[tuple[Family, str, int]]:
        """Each series: its family, the value of the family's own label, and its first cell."""
        cell = self.first
        for family in self.families:
            for value in family.label_values:
                yield family, value, cell
                cell += family.cells_per_series

    def cell(self, family: Family, label_value: str = "") -> int:
        """The first cell of a series."""
        before = self.families[: self.families.index(family)]
        position = family.label_values.index(label_value)
        return self.first + sum(f.cells for f in before) + position * family.cells_per_series

    def gauge_cells(self) -> list[int]:
        """The cells that say how a process is now, not what it has done."""
        gauges = (Kind.GAUGE, Kind.LARGEST)
        return [cell for family, _, cell in self.series() if family.kind in gauges]


REQUESTS = Family(
    "sharded_infer_requests",
    "Predict requests answered, by gRPC status code.",
    Kind.COUNTER,
    label="code",
    label_values=CODES,
    hidden_zeros=frozenset(CODES) - {"OK"},
)
UNKNOWN_REQUESTS = replace(REQUESTS, hidden_zeros=frozenset(CODES))
REQUEST_SECONDS = Family(
    "sharded_infer_request_seconds",
    "Time from a decoded RPC message to its encoded response, of successful requests.",
    Kind.HISTOGRAM,
    boundaries=LATENCY_BOUNDARIES,
)
PHASE_SECONDS = Family(
    "sharded_infer_phase_seconds",
    "Time of one phase of a successful request: decode, lookup, tower or encode.",
    Kind.HISTOGRAM,
    label="phase",
    label_values=PHASES,
    boundaries=LATENCY_BOUNDARIES,
)
QUEUE_SECONDS = Family(
    "sharded_infer_queue_seconds",
    "Time a successful request waited between being decoded and its batch starting.",
    Kind.HISTOGRAM,
    boundaries=LATENCY_BOUNDARIES,
)
SAMPLES = Family("sharded_infer_samples", "Samples (user-item pairs) scored.", Kind.COUNTER)
IDS_OUT_OF_RANGE = Family(
    "sharded_infer_ids_out_of_range",
    "Ids outside their tables that were ignored or wrapped, as the model's spec says.",
    Kind.COUNTER,
)
BATCH_SAMPLES = Family(
    "sharded_infer_batch_samples",
    "Samples of an executed batch.",
    Kind.HISTOGRAM,
    boundaries=BATCH_SAMPLES_BOUNDARIES,
)
BATCH_REQUESTS = Family(
    "sharded_infer_batch_requests",
    "Requests of an executed batch.",
    Kind.HISTOGRAM,
    boundaries=BATCH_REQUESTS_BOUNDARIES,
)
BUSY_SECONDS = Family(
    "sharded_infer_busy_seconds", "Time that run slots spent executing batches.", Kind.COUNTER
)
COST_PREDICTED_SECONDS = Family(
    "sharded_infer_cost_predicted_seconds",
    "Time that executed batches were expected to take, to compare with the busy time.",
    Kind.COUNTER,
)
QUEUE_REQUESTS = Family("sharded_infer_queue_requests", "Requests waiting now.", Kind.GAUGE)
QUEUE_SAMPLES = Family(
    "sharded_infer_queue_samples", "Samples of the requests waiting now.", Kind.GAUGE
)
REQUESTS_REFUSED = Family(
    "sharded_infer_requests_refused",
    "Requests that were not run: the queue was full, the deadline could not be met, the client "
    "cancelled, or the deadline passed while waiting.",
    Kind.COUNTER,
    label="reason",
    label_values=REFUSALS,
)
LOADED = Family(
    "sharded_infer_model_loaded", "1 for each version that is loaded and ready.", Kind.LARGEST
)
TABLE_BYTES = Family(
    "sharded_infer_table_bytes",
    "Bytes of the version's table files, mapped or copied; workers share them.",
    Kind.LARGEST,
)
TABLE_HUGE_PAGE_BYTES = Family(
    "sharded_infer_table_huge_page_bytes",
    'Bytes of them that lie in huge pages (`memory = "huge"`) since they were loaded.',
    Kind.LARGEST,
)
IN_FLIGHT = Family(
    "sharded_infer_requests_in_flight", "Predict requests being answered now.", Kind.GAUGE
)
WORKERS = Family("sharded_infer_workers", "Processes that answer requests now.", Kind.GAUGE)
WORKER_RESTARTS = Family(
    "sharded_infer_worker_restarts",
    "Workers that were started in the place of one that died.",
    Kind.COUNTER,
)
MINOR_FAULTS = Family(
    "sharded_infer_minor_page_faults",
    "Pages that the workers' processes had mapped while they answered requests, loads included; "
    "hardly any more of them than requests in steady state.",
    Kind.COUNTER,
)
TRACES_DROPPED = Family(
    "sharded_infer_traces_dropped",
    "Traced requests whose spans were lost: too many waited, or the collector did not take them.",
    Kind.COUNTER,
)
# The page gives each worker's own value, not the sum.
WORKER_REQUESTS = Family(
    "sharded_infer_worker_requests",
    "Predict requests answered, by worker, whatever their status code.",
    Kind.COUNTER,
    label="worker",
)

CREATED = Family(
    "sharded_infer_version_created_timestamp_seconds",
    "When a version that is loaded was published, in seconds since 1970.",
    Kind.LARGEST,
)
LOADS = Family(
    "sharded_infer_version_loads",
    "Versions that every worker has loaded and that clients could ask for.",
    Kind.COUNTER,
)
LOAD_FAILURES = Family(
    "sharded_infer_version_load_failures",
    "Versions that were not served, by what was being done when they failed.",
    Kind.COUNTER,
    label="phase",
    label_values=LOAD_PHASES,
)
LOAD_SECONDS = Family(
    "sharded_infer_version_load_seconds",
    "Time that a phase of the last load took, of the slowest worker.",
    Kind.LARGEST,
    label="phase",
    label_values=LOAD_PHASES,
)
LOOKED = Family(
    "sharded_infer_repository_read_timestamp_seconds",
    "When the model's versions and labels were last read, in seconds since 1970.",
    Kind.LARGEST,
)
# The page gives each worker's own value.
SERVED_VERSION = Family(
    "sharded_infer_served_version",
    "The version that answers requests which name none, by worker; 0: none.",
    Kind.GAUGE,
    label="worker",
)
# The page computes it from the time of the default version.
SERVED_AGE = Family(
    "sharded_infer_served_age_seconds",
    "Time since the version that answers requests which name none was published.",
    Kind.LARGEST,
)
# Its label values are the labels that a server follows, and "default".
LABEL_VERSION = Family(
    "sharded_infer_label_version",
    "The version that a label means here; 0: none.",
    Kind.LARGEST,
    label="label",
    label_values=("default",),
)

MODEL_LABELS = ("model",)
MODEL_FAMILIES = (
    LOADS,
    LOAD_FAILURES,
    LOAD_SECONDS,
    LOOKED,
    SERVED_VERSION,
    SERVED_AGE,
    LABEL_VERSION,
)
VERSION_LABELS = ("model", "version")
VERSION_FAMILIES = (
    REQUESTS,
    REQUEST_SECONDS,
    PHASE_SECONDS,
    QUEUE_SECONDS,
    SAMPLES,
    IDS_OUT_OF_RANGE,
    BATCH_SAMPLES,
    BATCH_REQUESTS,
    BUSY_SECONDS,
    COST_PREDICTED_SECONDS,
    QUEUE_REQUESTS,
    QUEUE_SAMPLES,
    REQUESTS_REFUSED,
    LOADED,
    TABLE_BYTES,
    TABLE_HUGE_PAGE_BYTES,
    CREATED,
)
SERVER_FAMILIES = (
    IN_FLIGHT,
    MINOR_FAULTS,
    TRACES_DROPPED,
    WORKERS,
    WORKER_RESTARTS,
    WORKER_REQUESTS,
)
