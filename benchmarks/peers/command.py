"""Measures our server beside Triton with TorchRec's model behind it."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.table import Table

from benchmarks.peers.measurement import OURS, TRITON, PeerCell, measure_peers
from benchmarks.peers.triton_server import DEFAULT_FOLDER, PACKAGE
from kernels.machine import machine
from serving.bench.parts.installed_torchrec import INSTALL, torchrec_is_installed
from serving.bench.workloads.dlrm_v2 import DEFAULT_MAX_ROWS, DlrmV2
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import on_processors
from serving.commands.progress_bars import progress_bars
from sharded_infer.errors import InputError
from sharded_infer.specs.precision import Precision

_DENSES = ("fp32", "bf16")
# A load that keeps a core busy makes every request slow.
_SERVE_OPTIONS = ("--slow-request-ms=0",)


def peers_command(
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
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each load.")] = 3.0,
    serve_option: Annotated[
        list[str] | None,
        typer.Option(help="Option for our servers, such as --serve-option=--memory=huge."),
    ] = None,
    json_file: JsonFileOption = None,
) -> None:
    """Measure our server beside Triton with TorchRec's model behind it.

    Each server has one core and the load another. All take the same requests over gRPC: 270 pairs
    with 2 in flight, 16 and one with 16 in flight. Triton's Python backend runs TorchRec's
    quantized DLRM-v2, as `quantize_inference_model` leaves it and with its dense parts in bf16;
    Triton puts waiting requests in a batch. Takes 10 GB, and five minutes with the servers' starts.
    `make bench-peers` installs what is missing.
    """
    check_target(json_file)
    if not torchrec_is_installed():
        raise InputError(f"TorchRec is not installed: {INSTALL}")
    with progress_bars() as progress:
        cells = measure_peers(
            DlrmV2(max_rows=max_rows),
            triton,
            precisions=list(dict.fromkeys(precision or (Precision.BF16, Precision.INT8))),
            denses=_DENSES,
            serve_options=(*_SERVE_OPTIONS, *(serve_option or ())),
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )
    _print(cells)
    OUT.print(
        f"DLRM-v2, tables cut to {max_rows:,} rows; medians of "
        f"{rounds} rounds of {seconds:g} s in turns, and the lowest and highest ratio of a round\n"
        f"a server has one core of {os.cpu_count()}, the load another, {machine().class_text}; "
        f"{PACKAGE}",
        highlight=False,
        soft_wrap=True,
    )
    fields = {
        "max_rows": max_rows,
        "rounds": rounds,
        "seconds": seconds,
        "triton": PACKAGE,
        "instruction_set": machine().class_text,
        "measurements": [asdict(cell) for cell in cells],
        "ratios": [
            {"pairs": ours.pairs, "ours": ours.tower, "triton": peer.tower, "rounds": ratios}
            for ours, peer, ratios in _ratios(cells)
        ],
    }
    write_json(json_file, fields)


def _ratios(cells: Sequence[PeerCell]) -> list[tuple[PeerCell, PeerCell, list[float]]]:
    """Each of our servers beside each of Triton's models under the same load, by round."""
    return [
        (ours, peer, [a / b for a, b in zip(ours.rounds, peer.rounds, strict=True)])
        for ours in cells
        for peer in cells
        if (ours.server, peer.server) == (OURS, TRITON) and ours.pairs == peer.pairs
    ]


def _print(cells: Sequence[PeerCell]) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0))
    headings = ("pairs", "in flight", "server", "req/s", "p50", "p99", "CPU")
    for heading in (*headings, *(f"over Triton, {dense}" for dense in _DENSES)):
        table.add_column(heading, justify="left" if heading == "server" else "right")
    ratios = {(ours.pairs, ours.tower, peer.tower): found for ours, peer, found in _ratios(cells)}
    for cell in cells:
        over = [ratios.get((cell.pairs, cell.tower, dense), []) for dense in _DENSES]
        table.add_row(
            str(cell.pairs),
            str(cell.concurrency),
            f"{cell.server}, {cell.tower}",
            f"{cell.requests_per_second:,.1f}",
            f"{cell.p50_ms:.3g}",
            f"{cell.p99_ms:.3g}",
            f"{cell.cpu_ms:.3g}",
            *(
                f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
                if found and cell.server == OURS
                else "-"
                for found in over
            ),
        )
    OUT.print(table)
    OUT.print("p50, p99 and processor time a request in milliseconds", highlight=False)
