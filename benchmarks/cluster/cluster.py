"""Cost of a plan over several hosts, beside the same plan in one process and plain gRPC calls.

The front is this process, on one core; the shard hosts share another, if there is one. All take
turns with the same batches.
"""

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated

import numpy as np
import typer

from benchmarks.cluster.plain_hosts import PlainHosts
from kernels.wording import counted
from serving.bench.load.cores import one_core, split_cpus
from serving.bench.turns import in_turns
from serving.bench.workloads.workload import BenchModel, workload_named
from serving.commands.bench.report import TEXT, print_notes, print_table, times
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import TowerPrecision
from serving.commands.progress_bars import progress_bars
from serving.demo.server_process import command_process
from serving.demo.shard_hosts import write_topology
from serving.host.malloc import keep_freed_memory
from serving.protocol.lookups.version_key import version_key
from serving.protocol.readers.input_reader import InputReader
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.model import Model, open_model
from sharded_infer.engines.model_engine import BatchResult
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.lookups.placement import PlacedPiece, place_stored, share_of
from sharded_infer.lookups.shard_hosts import Front, PieceBags, StartedLookup
from sharded_infer.lookups.share_lookups import MAX_ANSWER_BYTES
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision

ONE_PROCESS, OURS, PLAIN = "one process", "shard hosts", "plain gRPC"
_MESSAGES = 16
_WARM_UP = 10
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClusterTimes:
    """Median seconds of a batch, with the tower, and processor seconds of all processes."""

    p50_seconds: float
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """Figures of requests of one size, by variant; ratios are of ours to one process.

    Wire bytes are a batch's mean, both ways. The least are, for each piece, the smaller of all ids
    and fp32 sums, or distinct ids and their stored rows, with ids as narrow as tables allow.
    """

    pairs: int
    hosts: int
    times: dict[str, ClusterTimes]
    added_p50_seconds: float
    processor_time_ratio: float
    wire_bytes: float
    least_wire_bytes: float
    wire_bytes_ratio: float
    bits_equal: bool


def cluster_command(
    workload: Annotated[
        str, typer.Option(help="Model and requests: ranking, ragged or dlrm-v2.")
    ] = "ranking",
    precision: TowerPrecision = Precision.BF16,
    hosts: Annotated[int, typer.Option(help="Shard hosts.", min=1, max=64)] = 4,
    pairs: Annotated[
        list[int] | None, typer.Option(help="Samples of a request; may be repeated.", min=1)
    ] = None,
    rounds: Annotated[int, typer.Option(help="Turns of each way.", min=1)] = 5,
    requests: Annotated[int, typer.Option(help="Requests of each turn.", min=1)] = 200,
    json_file: JsonFileOption = None,
) -> None:
    """Measure a plan over several hosts beside one process.

    Shard hosts are processes on this machine that share a core; the front is this process, on
    another one. The plain way is gRPC's own client with a call for each piece of a table. Requests
    have 1 pair and 270 unless --pairs says otherwise. Processor time is that of all processes.
    """
    check_target(json_file)
    with progress_bars() as progress:
        found = measure_cluster(
            workload_named(workload).in_precision(precision),
            hosts=hosts,
            sizes=pairs or [1, 270],
            rounds=rounds,
            requests=requests,
            progress=progress,
        )
    milliseconds = times(1e3, ".3g")
    print_table(
        [
            ("pairs", "d"), ("lookups", TEXT), ("p50", milliseconds), ("CPU", milliseconds),
            ("added p50", milliseconds), ("CPU ratio", ".2f"),
        ],
        (
            (
                one.pairs, name, way.p50_seconds, way.cpu_seconds,
                way.p50_seconds - one.times[ONE_PROCESS].p50_seconds,
                way.cpu_seconds / one.times[ONE_PROCESS].cpu_seconds,
            )
            for one in found
            for name, way in one.times.items()
        ),
    )  # fmt: skip
    print_notes(
        *(
            f"{one.pairs} pairs, {OURS}: {size_text(round(one.wire_bytes))} of messages, "
            f"{one.wire_bytes_ratio:.2f} times the least; bits "
            f"{'equal' if one.bits_equal else 'DIFFER'}"
            for one in found
        ),
        f"\n{workload}, {precision} tower, {counted(hosts, 'shard host')}, {rounds} rounds of "
        f"{counted(requests, 'request')}. Medians, milliseconds.",
    )
    fields = {"workload": workload, "precision": precision, "sizes": [asdict(f) for f in found]}
    write_json(json_file, fields)


@dataclass(frozen=True, slots=True)
class MeasuredHost:
    """A running shard host."""

    address: str
    process_id: int

    def cpu_seconds(self) -> float:
        """Processor time of all its threads."""
        total = 0
        for task in Path(f"/proc/{self.process_id}/task").iterdir():
            # Nanoseconds on a processor come first (the kernel's sched-stats.rst).
            total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9


@contextmanager
def shard_hosts(
    repository: Path, hosts: int, cpus: Set[int]
) -> Iterator[Mapping[int, MeasuredHost]]:
    """Run `sharded-infer serve-shards` for each host of the plan in the context."""
    with ExitStack() as stack:
        yield {
            number: stack.enter_context(_shard_host(repository, number, cpus))
            for number in range(hosts)
        }


@contextmanager
def _shard_host(repository: Path, number: int, cpus: Set[int]) -> Iterator[MeasuredHost]:
    words = ("--repository", repository, "--host-number", number, "--slots", 1)
    ports = ("--port", 0, "--http-port", 0)
    with command_process("serve-shards", *words, *ports, cpus=cpus) as started:
        yield MeasuredHost(str(started.ready()["grpc_url"]), started.process.pid)


def measure_cluster(
    workload: BenchModel,
    *,
    hosts: int,
    sizes: Sequence[int],
    rounds: int,
    requests: int,
    progress: Progress,
) -> list[ClusterFigures]:
    """Publish the model for a number of hosts, start them, and measure."""
    _, host_cpus = split_cpus()
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as name:
        folder = Path(name)
        topology = write_topology(folder, workload.spec(), hosts)
        workload.publish(folder / "models", topologies=(topology,))
        artifact = Repository(folder / "models").open(workload.name)
        with shard_hosts(folder / "models", hosts, host_cpus) as running, one_core():
            models, counted = _models(artifact, running)
            found = []
            for number, pairs in enumerate(sizes):
                found.append(_measure(workload, models, counted, running, pairs, rounds, requests))
                progress("sizes", number + 1, len(sizes))
            return found


def _models(
    artifact: Artifact, running: Mapping[int, MeasuredHost]
) -> tuple[dict[str, Model], "_CountedHosts"]:
    addresses = {number: host.address for number, host in running.items()}
    key = version_key(artifact.manifest)
    settings = HostSettings({host: (one,) for host, one in addresses.items()}, _SECONDS)
    clients = HostClients(settings, answer_bytes=MAX_ANSWER_BYTES)
    ours = RemoteHosts(key, clients)
    counted = _CountedHosts(ours, clients, place_stored(artifact.plan(None), artifact))
    opened = partial(open_model, artifact.path, verify=False)
    models = {
        ONE_PROCESS: opened(),
        OURS: opened(front=Front(ours)),
        PLAIN: opened(front=Front(PlainHosts(key, addresses))),
        "counted": opened(front=Front(counted)),
    }
    models[ONE_PROCESS].map_pages()
    return models, counted


class _CountedHosts:
    """Counts the least bytes of lookups and answers."""

    def __init__(
        self, hosts: RemoteHosts, clients: HostClients, placed: Sequence[PlacedPiece]
    ) -> None:
        self._hosts, self._clients = hosts, clients
        self._shares = {host: share_of(placed, host) for host in hosts.hosts}
        self.least = 0

    @property
    def hosts(self) -> frozenset[int]:
        return self._hosts.hosts

    @property
    def lost(self) -> frozenset[int]:
        return self._hosts.lost

    def wire_bytes(self) -> int:
        """Bytes of all messages since the start, both ways."""
        counts = [group.counts for group in self._clients.now.groups.values()]
        return sum(one.sent_bytes + one.received_bytes for one in counts)

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        for host, groups in asked.items():
            for group in groups:
                self._count(self._shares[host], group)
        return self._hosts.start(asked, deadline, may_lose)

    def _count(self, share: Sequence[PlacedPiece], group: PieceBags) -> None:
        lengths = group.bags.lengths.numpy()
        ends = np.cumsum(lengths.sum(1)).tolist()
        ids = group.bags.values.numpy()
        for number, first, end in zip(group.pieces.tolist(), [0, *ends[:-1]], ends, strict=True):
            piece = share[number]
            id_bytes = -(-(piece.rows - 1).bit_length() // 8)
            row_bytes = piece.table.row_format.row_bytes(piece.columns)
            rows = len(np.unique(ids[first:end]))
            sums = 4 * lengths.shape[1] * piece.columns
            self.least += min((end - first) * id_bytes + sums, rows * (id_bytes + row_bytes))


def _measure(
    workload: BenchModel,
    models: Mapping[str, Model],
    counted: _CountedHosts,
    running: Mapping[int, MeasuredHost],
    pairs: int,
    rounds: int,
    requests: int,
) -> ClusterFigures:
    reader = InputReader(models[ONE_PROCESS].spec, max_batch=pairs)
    batches = [reader.read_message(one) for one in workload.messages(pairs, _MESSAGES)]
    ways = {name: models[name].engine.run for name in (ONE_PROCESS, OURS, PLAIN)}
    equal = True
    wire_bytes = counted.least = 0
    for batch in batches:
        expected = _scores(ways[ONE_PROCESS], batch)
        counted_before = counted.wire_bytes()
        counted_scores = _scores(models["counted"].engine.run, batch)
        wire_bytes += counted.wire_bytes() - counted_before
        others = [counted_scores, *(_scores(ways[name], batch) for name in (OURS, PLAIN))]
        equal = equal and all(
            np.array_equal(one, other)
            for scores in others
            for one, other in zip(expected, scores, strict=True)
        )
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for name in in_turns(list(ways), rounds):
        for number in range(_WARM_UP):
            ways[name](batches[number % _MESSAGES])
        before = _cpu_seconds(running)
        for number in range(requests):
            began = perf_counter()
            ways[name](batches[number % _MESSAGES])
            seconds[name].append(perf_counter() - began)
        cpu[name].append((_cpu_seconds(running) - before) / requests)
    times = {name: ClusterTimes(median(seconds[name]), median(cpu[name])) for name in ways}
    return ClusterFigures(
        pairs=pairs,
        hosts=len(running),
        times=times,
        added_p50_seconds=times[OURS].p50_seconds - times[ONE_PROCESS].p50_seconds,
        processor_time_ratio=times[OURS].cpu_seconds / times[ONE_PROCESS].cpu_seconds,
        wire_bytes=wire_bytes / len(batches),
        least_wire_bytes=counted.least / len(batches),
        wire_bytes_ratio=wire_bytes / max(1, counted.least),
        bits_equal=equal,
    )


def _scores(run: Callable[[ModelInput], BatchResult], batch: ModelInput) -> list[np.ndarray]:
    return [np.copy(one) for one in run(batch).scores]


def _cpu_seconds(running: Mapping[int, MeasuredHost]) -> float:
    return process_time() + sum(host.cpu_seconds() for host in running.values())
