"""Loads our server and Triton with TorchRec's model behind it, in turns.

Every server runs on the same core and every load on another. All get the same random requests.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.peers.triton_server import model_name, triton_serving
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading, ServeFigures, measure_answered, median_of
from serving.bench.servers.server_under_test import served
from serving.bench.turns import in_turns
from serving.bench.workloads.dlrm_v2 import DlrmV2
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

OURS = "ours"
TRITON = "Triton"
# Samples of a request, and requests in flight.
LOADS = ((270, 2), (16, 16), (1, 16))
_MESSAGES = 64


@dataclass(frozen=True, slots=True)
class PeerCell:
    """One server under one closed load.

    Attributes:
        server: "ours" or "Triton".
        tower: ours: the tower's precision; Triton: the dtype of TorchRec's dense parts.
        requests_per_second: median of the rounds, as are the others.
        rounds: requests a second of each round.
        cpu_ms: processor milliseconds of the server for each request.
    """

    server: str
    tower: str
    pairs: int
    concurrency: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    rounds: tuple[float, ...]


def measure_peers(
    workload: DlrmV2,
    triton: Path,
    *,
    precisions: Sequence[Precision],
    denses: Sequence[str],
    serve_options: Sequence[str],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[PeerCell]:
    """Closed loads on every server.

    Args:
        triton: folder of Triton's package.
        precisions: of our towers, each in a server of its own.
        denses: dtypes of TorchRec's dense parts, each a model of one Triton.
        serve_options: further arguments of `sharded-infer serve`.
        rounds: measurements of each.
        seconds: duration of each measurement; of one without an answer, twice as long.

    Raises:
        ShardedInferError: a server did not start, or answered with an error.
    """
    server_cpus, load_cpus = split_cpus()
    with ExitStack() as stack:
        names = {(TRITON, dense): model_name(dense) for dense in denses}
        progress("starting Triton", 0, 1)
        peer = stack.enter_context(triton_serving(triton, denses, workload.max_rows, server_cpus))
        progress("starting Triton", 1, 1)
        servers = dict.fromkeys(names, peer)
        for precision in precisions:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
            workload.in_precision(precision).publish(Path(folder), progress)
            key = (OURS, precision.value)
            names[key] = workload.name
            servers[key] = stack.enter_context(served(Path(folder), serve_options, server_cpus))
        found: dict[tuple[str, str, int, int], list[ServeFigures]] = {}
        total, done = len(LOADS) * rounds * len(servers), 0
        for pairs, flying in LOADS:
            loadings = {
                key: Loading(
                    replace(workload, name=names[key]).messages(pairs, _MESSAGES),
                    pairs,
                    flying,
                    load_cpus,
                )
                for key in servers
            }
            for key in in_turns(list(servers), rounds):
                figures = measure_answered(
                    " ".join(key), servers[key], loadings[key], concurrency=flying, seconds=seconds
                )
                found.setdefault((*key, pairs, flying), []).append(figures)
                done += 1
                progress("loading", done, total)
    return [_cell(*key, figures) for key, figures in found.items()]


def _cell(
    server: str, tower: str, pairs: int, concurrency: int, figures: Sequence[ServeFigures]
) -> PeerCell:
    middle = partial(median_of, figures)
    return PeerCell(
        server=server,
        tower=tower,
        pairs=pairs,
        concurrency=concurrency,
        requests_per_second=middle(lambda one: one.requests_per_second),
        p50_ms=middle(lambda one: one.latency_ms.get("p50")),
        p99_ms=middle(lambda one: one.latency_ms.get("p99")),
        cpu_ms=middle(lambda one: one.cpu_ms_per_request),
        rounds=tuple(one.requests_per_second for one in figures),
    )
