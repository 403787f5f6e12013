"""Measures lookups and tower in this process, beside TorchRec and the machine's limit."""

import os
import platform
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from kernels.native_backend import lookup_instruction_sets
from serving.bench.dlrm_v2 import DEFAULT_MAX_ROWS, DlrmV2
from serving.bench.drawn_ids import IdDistribution
from serving.bench.engine_measurement import EngineMeasurement, measure_engine
from serving.commands.console import OUT, check_target, write_json
from serving.commands.memory_choice import MemoryChoice
from serving.progress import progress_bars
from sharded_infer.table_memory import TableMemory

_WHOLE_CORE = 0.97  # an idle machine leaves this much of a core, or more


class EngineWorkload(StrEnum):
    """What can be measured: models that TorchRec has too."""

    DLRM_V2 = "dlrm-v2"


def bench_engine_command(
    workload: Annotated[
        EngineWorkload, typer.Option(help="Model and requests: MLPerf Inference's DLRM-v2.")
    ] = EngineWorkload.DLRM_V2,
    max_rows: Annotated[
        int,
        typer.Option(
            min=1,
            help="Larger tables are cut to so many rows; 40000000 cuts none and takes 27 GB for "
            "each of ours, TorchRec's and the two that are gathered from.",
        ),
    ] = DEFAULT_MAX_ROWS,
    pairs: Annotated[int, typer.Option(min=1, help="Samples of a request.")] = 270,
    ids: Annotated[
        IdDistribution, typer.Option(help="How often rows are asked for; zipf: exponent 1.05.")
    ] = IdDistribution.ZIPF,
    memory: Annotated[
        MemoryChoice, typer.Option(help="Our tables mapped, or copied to 2 MiB pages.")
    ] = MemoryChoice.HUGE,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Of each variant's turn in a round.")
    ] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of turns; medians count.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file as JSON.")
    ] = None,
) -> None:
    """Measure lookups and tower on one core, beside TorchRec and what the machine allows.

    MLPerf Inference's DLRM-v2, with random weights: 26 int8 tables of dim 128, 214 lookups a pair,
    a DCNv2 tower in bf16. Ours goes from the message's bytes to the response's, by stages, with no
    server around it. The limit is a copy of the same rows from memory of 2 MiB pages and the
    tower's matrix products in bf16, and nothing else. TorchRec's is its quantized model, eager,
    from a ready KeyedJaggedTensor to the scores, as it is and with its dense parts cast to bf16;
    `make bench-setup` installs it. Takes 8 GB and about a minute and a half.
    """
    check_target(json_file)
    chosen = DlrmV2(max_rows=max_rows, ids=ids)
    with progress_bars() as progress:
        measured = measure_engine(
            chosen,
            memory=TableMemory(memory),
            pairs=pairs,
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )
    _print(measured)
    instruction_set = max(lookup_instruction_sets()).name.lower()
    OUT.print(
        f"\n{workload}, tables cut to {max_rows:,} rows, {ids} ids, {pairs} pairs a request, "
        f"our tables in {'2 MiB' if memory is MemoryChoice.HUGE else '4 KiB'} pages, "
        f"{chosen.precision} tower, {instruction_set}\none core of {os.cpu_count()}, "
        f"{platform.machine()}",
        highlight=False,
        soft_wrap=True,
    )
    if measured.core_share < _WHOLE_CORE:
        OUT.print(
            f"this process had {measured.core_share:.0%} of the core: others ran there too, and "
            "the figures are too slow",
            highlight=False,
            soft_wrap=True,
        )
    if measured.torchrec_refusal is not None:
        OUT.print(measured.torchrec_refusal, highlight=False, soft_wrap=True)
    limit = measured.limit
    fields = {
        "workload": workload,
        "max_rows": max_rows,
        "ids": ids,
        "memory": memory,
        "pairs": pairs,
        "precision": chosen.precision,
        "rounds": rounds,
        "pairs_per_second_per_core": measured.rate(measured.whole_seconds),
        "limit_fraction": measured.limit_fraction,
        "whole_limit_fraction": measured.whole_limit_fraction,
        "torchrec_default_pairs_per_second": measured.rate(measured.torchrec_seconds),
        "torchrec_bf16_pairs_per_second": measured.rate(measured.torchrec_bf16_seconds),
        "torchrec_refusal": measured.torchrec_refusal,
        "whole_seconds": measured.whole_seconds,
        "stages": measured.stages,
        "limit": {
            "seconds": limit.seconds,
            "matrix_seconds": limit.matrix_seconds,
            "gather_seconds": limit.gather_seconds,
            "gather_4k_seconds": limit.gather_4k_seconds,
            "layers": [
                {"inputs": inputs, "outputs": outputs, "seconds": of_one}
                for (inputs, outputs), of_one in zip(limit.layers, limit.layer_seconds, strict=True)
            ],
        },
        "core_share": measured.core_share,
        "kernels": {
            "lookup": measured.lookup_backends,
            "instruction_set": instruction_set,
            "decode": measured.decode_backend,
        },
    }
    write_json(json_file, fields)


def _print(measured: EngineMeasurement) -> None:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in ("", "ms a request", "pairs/s", "limit's share"):
        table.add_column(heading, justify="right" if heading else "left")
    limit = measured.limit
    rows: list[tuple[str, float | None, bool]] = [
        *((f"  {stage}", of_stage, False) for stage, of_stage in measured.stages.items()),
        ("ours, message to response", measured.whole_seconds, True),
        ("ours, lookup and tower", measured.computing_seconds, True),
        ("TorchRec", measured.torchrec_seconds, True),
        ("TorchRec, bf16", measured.torchrec_bf16_seconds, True),
        ("  matrix products, bf16", limit.matrix_seconds, False),
        ("  gather, 2 MiB pages", limit.gather_seconds, False),
        ("  gather, 4 KiB pages", limit.gather_4k_seconds, False),
        ("limit: products and 2 MiB gather", limit.seconds, True),
    ]
    for name, of_row, is_whole in rows:
        table.add_row(
            name,
            "-" if of_row is None else f"{of_row * 1e3:.3g}",
            "-" if of_row is None or not is_whole else f"{measured.rate(of_row):,.0f}",
            "-" if of_row is None or not is_whole else f"{limit.seconds / of_row:.2f}",
        )
    OUT.print(table)
