"""Executors beside each other and a bare echo server, each on the same core, the load on another.

Idle costs are common to all.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product

from benchmarks.servers.closed_loads import LoadCell, closed_loads
from benchmarks.servers.echo_server import echoing
from serving.bench.load.cores import split_cpus
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import servers_of
from serving.bench.workloads.workload import BenchModel
from sharded_infer.progress import Progress

MODES = ("inline", "batched", "auto")
ECHO = "echo"
_ECHO_THREADS = {"grpcio": 8, "native": 1}
_ECHO_RESPONSE_BYTES = 100


def measure_matrix(
    workload: BenchModel,
    *,
    transports: Sequence[str],
    pairs: Sequence[int],
    concurrencies: Sequence[int],
    rounds: int,
    seconds: float,
    progress: Progress,
) -> list[LoadCell]:
    """Every executor and an echo server, over every transport, under closed loads."""
    server_cpus, load_cpus = split_cpus()
    options = {
        (transport, mode): [f"--executor={mode}", f"--transport={transport}"]
        for transport, mode in product(transports, MODES)
    }
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(workload.publish, options, server_cpus))
        for transport in transports:
            threads = _ECHO_THREADS[transport]
            servers[transport, ECHO] = stack.enter_context(
                echoing(transport, _ECHO_RESPONSE_BYTES, threads, server_cpus)
            )
        return closed_loads(
            servers,
            product(pairs, concurrencies),
            lambda _, size: Loading.of(workload, size, load_cpus),
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )
