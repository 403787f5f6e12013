"""A loaded version, and the settings of a server for all versions."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kernels.sequences.user_states import UserStates
from serving.host.table_copies import TableCopies
from serving.metrics.server_metrics import VersionMetrics
from serving.protocol.input_limits import InputLimits
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.version_queue import VersionQueue
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.model import Model
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan
from sharded_infer.towers.host_products import ProductsOption


@dataclass(frozen=True, slots=True)
class LoadedVersion:
    """A loaded version, with everything that a request needs.

    Attributes:
        huge_page_bytes: of its tables when loaded. A forked process maps them later.
    """

    model: Model
    reader: InputReader
    queue: VersionQueue
    metrics: VersionMetrics
    huge_page_bytes: int


class WeightedVersion(NamedTuple):
    """A version of a label with a weight."""

    label: str
    weight: int
    version: LoadedVersion


@dataclass(frozen=True, slots=True)
class ServingOverrides:
    """A server's settings for all models, which override the specs; None keeps the spec's value.

    Attributes:
        max_delay_us: microseconds that a batched model waits for more requests.
        memory: how tables are held in memory.
        devices: where plans for GPUs run; None: such plans are refused.
        fixed_slots: the user set how many batches run at once; devices do not change the number.
        limits: of a request besides its samples; specs do not set these.
        copies: copies of tables in huge pages that processes share; None: each has its own.
        processes: number of processes that load each version.
        front_of: where a version's rows are, if not all here; None: all are.
        user_states: keeps users' states of all versions and processes; None: none are kept.
        row_memory_bytes: for rows of each version, in all processes; None: all are in memory.
        products: how the precision of towers' products is chosen on the host.
        warm_from: a recording whose requests a version scores before it serves.
    """

    mode: BatchingMode | None = None
    max_delay_us: int | None = None
    memory: TableMemory | None = None
    devices: DeviceChoice | None = None
    fixed_slots: bool = False
    limits: InputLimits = field(default_factory=InputLimits)
    copies: TableCopies | None = None
    processes: int = 1
    front_of: Callable[[Artifact, Plan], Front | None] | None = None
    user_states: UserStates | None = None
    row_memory_bytes: int | None = None
    products: ProductsOption = ProductsOption.AUTO
    warm_from: str | None = None

    @property
    def own_row_memory_bytes(self) -> int | None:
        """Row memory of one process."""
        of_all = self.row_memory_bytes
        return None if of_all is None else of_all // self.processes

    def shared_bytes(self, artifact: Artifact) -> int:
        """Bytes of tables that another process has copied. Waits for an unfinished copy."""
        if self.copies is None:
            return 0
        names = artifact.manifest.memory_files
        return self.copies.held_bytes(artifact.path / name for name in names)

    def batching_policy(self, model: Model) -> BatchingPolicy:
        """How a version's requests are combined into batches."""
        serving = model.spec.serving
        delay_us = serving.max_delay_us if self.max_delay_us is None else self.max_delay_us
        return BatchingPolicy(
            mode=self.mode or BatchingMode(serving.executor),
            max_batch=serving.max_batch,
            max_delay=delay_us / 1e6,
            by_clock=model.engine.waits,
            device_slots=0 if self.fixed_slots else model.engine.device_slots,
        )
