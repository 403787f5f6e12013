"""Our server beside Triton with TorchRec's model behind it, in turns.

Every server runs on the same core and every load on another. All get the same random requests.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.peers.triton_server import DEFAULT_FOLDER, PACKAGE, model_name, triton_serving
from benchmarks.servers.closed_loads import LoadCell, closed_loads
from kernels.machine import machine
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.bench.servers.serve import Loading
from serving.bench.servers.server_under_test import served
from serving.bench.turns import Turns
from serving.bench.workloads.dlrm_v2 import DEFAULT_MAX_ROWS, dlrm_v2
from serving.commands.bench.options import RoundsOption, SecondsOption, ServeOption, on_processors
from serving.commands.bench.report import TEXT, Report, bench_command
from sharded_infer.errors import InputError
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision

OURS = "ours"
TRITON = "Triton"
# Samples of a request, and requests in flight.
LOADS = ((270, 2), (16, 16), (1, 16))
_DENSES = ("fp32", "bf16")
# A load that keeps a core busy makes every request slow.
_SERVE_OPTIONS = ("--slow-request-ms=0",)


@bench_command
def peers_command(
    progress: Progress,
    triton: Annotated[
        Path, typer.Option(help=f"Folder into which {PACKAGE} was installed: `make triton`.")
    ] = DEFAULT_FOLDER,
    max_rows: Annotated[
        int, typer.Option(min=1, help="Rows to which larger tables are cut.")
    ] = DEFAULT_MAX_ROWS,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(
            help="Precision of our tower; may be repeated; default: bf16 and int8.",
            callback=on_processors,
        ),
    ] = None,
    rounds: RoundsOption = 5,
    seconds: SecondsOption = 3.0,
    serve_option: ServeOption = None,
) -> Report:
    """Measure our server beside Triton with TorchRec's model behind it.

    Each server has one core and the load another. All take the same requests over gRPC: 270 pairs
    with 2 in flight, 16 and one with 16 in flight. Triton's Python backend runs TorchRec's
    quantized DLRM-v2, as `quantize_inference_model` leaves it and with its dense parts in bf16;
    Triton puts waiting requests in a batch. Takes 10 GB, and five minutes with the servers' starts.
    `make bench-peers` installs what is missing.
    """
    if not torchrec_is_installed():
        raise InputError(f"TorchRec is not installed: {INSTALL}")
    workload = dlrm_v2(max_rows)
    with ExitStack() as stack:
        names = {(TRITON, dense): model_name(dense) for dense in _DENSES}
        progress("starting Triton", 0, 1)
        peer = stack.enter_context(triton_serving(triton, _DENSES, max_rows))
        progress("starting Triton", 1, 1)
        servers = dict.fromkeys(names, peer)
        for one in dict.fromkeys(precision or (Precision.BF16, Precision.INT8)):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sharded-infer-bench-"))
            replace(workload, precision=one).publish(Path(folder), progress)
            names[OURS, one] = workload.name
            options = [*_SERVE_OPTIONS, *(serve_option or ())]
            servers[OURS, one] = stack.enter_context(served(Path(folder), options))
        cells = closed_loads(
            servers,
            LOADS,
            lambda key, pairs: Loading.of(replace(workload, name=names[key]), pairs),
            Turns(rounds, seconds, progress),
        )
    ratios = _ratios(cells)
    over = {(ours, peer.variant): found for ours, peer, found in ratios}
    return Report(
        [
            ("pairs", "d"), ("in flight", "d"), ("server", TEXT), ("req/s", ",.1f"), ("p50", ".3g"),
            ("p99", ".3g"), ("CPU", ".3g"),
            *((f"over Triton, {dense}", _range_text) for dense in _DENSES),
        ],
        [
            (
                one.pairs, one.concurrency, f"{one.server}, {one.variant}",
                one.requests_per_second, one.p50_ms, one.p99_ms, one.cpu_ms,
                *(over.get((one, dense)) for dense in _DENSES),
            )
            for one in cells
        ],
        [
            "p50, p99 and processor time a request in milliseconds",
            f"DLRM-v2, tables cut to {max_rows:,} rows; medians of {rounds} rounds of {seconds:g} "
            "s in turns, and the lowest and highest ratio of a round",
            f"a server has one core, the load another; {PACKAGE}",
        ],
        {
            "max_rows": max_rows,
            "rounds": rounds,
            "seconds": seconds,
            "triton": PACKAGE,
            "instruction_set": machine().class_text,
            "measurements": [asdict(cell) for cell in cells],
            "ratios": [
                {"pairs": ours.pairs, "ours": ours.variant, "triton": peer.variant, "rounds": found}
                for ours, peer, found in ratios
            ],
        },
    )  # fmt: skip


def _range_text(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def _ratios(cells: Sequence[LoadCell]) -> list[tuple[LoadCell, LoadCell, list[float]]]:
    return [
        (ours, peer, [a / b for a, b in zip(ours.rounds, peer.rounds, strict=True)])
        for ours, peer in product(cells, cells)
        if (ours.server, peer.server) == (OURS, TRITON) and ours.pairs == peer.pairs
    ]
