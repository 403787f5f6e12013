"""Cost of a plan over several hosts, beside the same plan in one process and plain gRPC calls."""

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.cluster.plain_hosts import PlainHosts
from kernels.wording import counted
from serving.bench.load.process import split_cpus
from serving.bench.turns import Parts, Turns, medians, one_core, seconds_of
from serving.bench.workloads.named import workload_named
from serving.bench.workloads.workload import Workload
from serving.commands.bench.options import (
    AllPairsOption,
    RoundsOption,
    TowerPrecision,
    WorkloadOption,
)
from serving.commands.bench.report import TEXT, Report, bench_command, times
from serving.demo.server_process import command_process, write_topology
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
COUNTED = "shard hosts, counted"
_MESSAGES = 16
_WARM_UP = 10
_SECONDS = 60.0


@bench_command
def cluster_command(
    progress: Progress,
    workload: WorkloadOption = "ranking",
    precision: TowerPrecision = Precision.BF16,
    hosts: Annotated[int, typer.Option(help="Shard hosts.", min=1, max=64)] = 4,
    pairs: AllPairsOption = None,
    rounds: RoundsOption = 5,
    requests: Annotated[int, typer.Option(help="Requests of each turn.", min=1)] = 200,
) -> Report:
    """Measure a plan over several hosts beside one process.

    Shard hosts are processes on this machine that share a core; the front is this process, on
    another one. The plain way is gRPC's own client with a call for each piece of a table. Requests
    have 1 pair and 270 unless --pairs says otherwise. Processor time is that of all processes.
    """
    chosen = workload_named(workload, precision)
    sizes = pairs or [1, 270]
    found = []
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        topology = write_topology(folder, chosen.spec(), hosts)
        chosen.publish(folder / "models", topologies=(topology,))
        artifact = Repository(folder / "models").open(chosen.name)
        words = ("--repository", folder / "models", "--slots", 1, "--port", 0, "--http-port", 0)
        running = [
            stack.enter_context(
                command_process("serve-shards", *words, "--host-number", n, cpus=split_cpus()[1])
            )
            for n in range(hosts)
        ]
        addresses = {n: str(started.ready()["grpc_url"]) for n, started in enumerate(running)}
        stack.enter_context(one_core())
        models, counting = _models(artifact, addresses)
        process_ids = [started.process.pid for started in running]
        for size in sizes:
            found.append(_measure(chosen, models, counting, process_ids, size, rounds, requests))
            progress("sizes", len(found), len(sizes))
    milliseconds = times(1e3, ".3g")
    return Report(
        [
            ("pairs", "d"), ("lookups", TEXT), ("p50", milliseconds), ("CPU", milliseconds),
            ("added p50", milliseconds), ("CPU ratio", ".2f"),
        ],
        [
            (
                one["pairs"], name, way["p50_seconds"], way["cpu_seconds"],
                way["p50_seconds"] - one["times"][ONE_PROCESS]["p50_seconds"],
                way["cpu_seconds"] / one["times"][ONE_PROCESS]["cpu_seconds"],
            )
            for one in found
            for name, way in one["times"].items()
        ],
        [
            *(
                f"{one['pairs']} pairs, {OURS}: {size_text(round(one['wire_bytes']))} of messages, "
                f"{one['wire_bytes_ratio']:.2f} times the least; bits "
                f"{'equal' if one['bits_equal'] else 'DIFFER'}"
                for one in found
            ),
            f"\n{workload}, {precision} tower, {counted(hosts, 'shard host')}, {rounds} rounds of "
            f"{counted(requests, 'request')}. Medians, milliseconds.",
        ],
        {"workload": workload, "precision": precision, "sizes": found},
    )  # fmt: skip


def _models(
    artifact: Artifact, addresses: Mapping[int, str]
) -> tuple[dict[str, Model], "_CountedHosts"]:
    key = version_key(artifact.manifest)
    settings = HostSettings({host: (one,) for host, one in addresses.items()}, _SECONDS)
    clients = HostClients(settings, answer_bytes=MAX_ANSWER_BYTES)
    ours = RemoteHosts(key, clients)
    counting = _CountedHosts(ours, clients, place_stored(artifact.plan(None), artifact))
    opened = partial(open_model, artifact.path, verify=False)
    models = {
        ONE_PROCESS: opened(),
        OURS: opened(front=Front(ours)),
        PLAIN: opened(front=Front(PlainHosts(key, addresses))),
        COUNTED: opened(front=Front(counting)),
    }
    models[ONE_PROCESS].map_pages()
    return models, counting


class _CountedHosts:
    """Counts the least bytes of lookups and answers."""

    lost: frozenset[int] = frozenset()

    def __init__(
        self, hosts: RemoteHosts, clients: HostClients, placed: Sequence[PlacedPiece]
    ) -> None:
        self._hosts, self._clients = hosts, clients
        self.hosts = hosts.hosts
        self._shares = {host: share_of(placed, host) for host in self.hosts}
        self.least = 0

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
    workload: Workload,
    models: Mapping[str, Model],
    counting: _CountedHosts,
    process_ids: Sequence[int],
    pairs: int,
    rounds: int,
    requests: int,
) -> dict[str, Any]:
    """Figures of requests of one size; ratios are of ours to one process.

    Times are median seconds of a batch, with the tower, and processor seconds of all processes.
    Wire bytes are a batch's mean, both ways. The least are, for each piece, the smaller of all ids
    and fp32 sums, or distinct ids and their stored rows, with ids as narrow as tables allow.
    """
    reader = InputReader(models[ONE_PROCESS].spec, max_batch=pairs)
    batches = [reader.read_message(one) for one in workload.messages(pairs, _MESSAGES)]
    ways = {name: model.engine.run for name, model in models.items()}
    counting.least, before = 0, counting.wire_bytes()
    counted_scores = _scores(ways.pop(COUNTED), batches)
    wire_bytes = counting.wire_bytes() - before
    scores = {name: _scores(run, batches) for name, run in ways.items()}
    others = [counted_scores, scores[OURS], scores[PLAIN]]
    equal = all(
        np.array_equal(one, other)
        for of_way in others
        for one, other in zip(scores[ONE_PROCESS], of_way, strict=True)
    )

    def turn(run: Callable[[ModelInput], BatchResult], _: int) -> Parts:
        for number in range(_WARM_UP):
            run(batches[number % _MESSAGES])
        before = _cpu_seconds(process_ids)
        seconds = [seconds_of(partial(run, batches[n % _MESSAGES])) for n in range(requests)]
        cpu = (_cpu_seconds(process_ids) - before) / requests
        return {"p50_seconds": median(seconds), "cpu_seconds": cpu}

    turns = Turns(rounds, 0.0).of({name: partial(turn, run) for name, run in ways.items()})
    times = {name: medians(of_way) for name, of_way in turns.items()}
    ours, alone = times[OURS], times[ONE_PROCESS]
    return {
        "pairs": pairs,
        "hosts": len(process_ids),
        "times": times,
        "added_p50_seconds": ours["p50_seconds"] - alone["p50_seconds"],
        "processor_time_ratio": ours["cpu_seconds"] / alone["cpu_seconds"],
        "wire_bytes": wire_bytes / len(batches),
        "least_wire_bytes": counting.least / len(batches),
        "wire_bytes_ratio": wire_bytes / max(1, counting.least),
        "bits_equal": equal,
    }


def _scores(
    run: Callable[[ModelInput], BatchResult], batches: Sequence[ModelInput]
) -> list[np.ndarray]:
    return [np.copy(one) for batch in batches for one in run(batch).scores]


def _cpu_seconds(process_ids: Sequence[int]) -> float:
    """Processor time of this process and of all threads of others."""
    tasks = [task for one in process_ids for task in Path(f"/proc/{one}/task").iterdir()]
    # Nanoseconds on a processor come first (the kernel's sched-stats.rst).
    spent = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
    return process_time() + spent / 1e9
