"""Times of lookups and tower in this process, beside TorchRec and the machine's limit."""

import os
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from kernels.machine import machine
from serving.bench.parts.engine import measure_engine
from serving.bench.parts.engine_figures import EngineMeasurement, MachineLimit
from serving.bench.workloads.dlrm_v2 import DEFAULT_MAX_ROWS, DlrmV2
from serving.bench.workloads.drawn_ids import IdDistribution
from serving.commands.bench.engine_devices import BenchDevice, bench_on_devices
from serving.commands.bench.engine_sequences import bench_sequences
from serving.commands.bench.report import TEXT, print_table, times
from serving.commands.console import OUT, check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import on_processors
from serving.commands.progress_bars import progress_bars
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.specs.precision import Precision

_WHOLE_CORE = 0.97  # an idle machine leaves this much of a core, or more


class EngineWorkload(StrEnum):
    """A model that TorchRec has too, or a tower over a user's history."""

    DLRM_V2 = "dlrm-v2"
    DIN = "din"
    SASREC = "sasrec"
    HSTU_SMALL = "hstu-small"


def bench_engine_command(
    workload: Annotated[
        EngineWorkload,
        typer.Option(help="MLPerf Inference's DLRM-v2, or a tower over a user's history."),
    ] = EngineWorkload.DLRM_V2,
    max_rows: Annotated[
        int,
        typer.Option(
            min=1,
            help="Rows to which larger tables are cut; 40000000 cuts none, and takes 27 GB "
            "each for our tables, TorchRec's and the two that are gathered from.",
        ),
    ] = DEFAULT_MAX_ROWS,
    pairs: Annotated[int, typer.Option(min=1, help="Samples of a request.")] = 270,
    ids: Annotated[
        IdDistribution, typer.Option(help="Distribution of the ids; zipf: exponent 1.05.")
    ] = IdDistribution.ZIPF,
    memory: Annotated[
        TableMemory, typer.Option(help="Where our tables lie, as `serve --memory` says.")
    ] = TableMemory.AUTO,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(
            help="Precision of the tower; may be repeated.  "
            "[default: bf16, int8; on GPUs tf32, bf16]"
        ),
    ] = None,
    device: Annotated[
        BenchDevice,
        typer.Option(help="cuda: on GPUs; simulated: on GPUs simulated by the host, for a trial."),
    ] = BenchDevice.CPU,
    topology: Annotated[
        str, typer.Option(help="On GPUs: topology to plan for, such as h200:1.")
    ] = "cuda:1",
    gpus: Annotated[
        str | None, typer.Option(help="On GPUs: the CUDA device of each rank, such as 0,0,1.")
    ] = None,
    history: Annotated[
        int, typer.Option(min=1, help="Of din, sasrec and hstu-small: ids of a user's history.")
    ] = 200,
    candidates: Annotated[
        int, typer.Option(min=1, help="Of din, sasrec and hstu-small: samples of a request.")
    ] = 100,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Seconds of each variant's turn in a round.")
    ] = 1.0,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of turns; the medians are shown.")] = 5,
    json_file: JsonFileOption = None,
) -> None:
    """Measure lookups and tower on one core, beside TorchRec and the machine's limit.

    The model is MLPerf Inference's DLRM-v2 with random weights: 26 int8 tables of dim 128, 214
    lookups a pair, a DCNv2 tower. Our figures go from the message's bytes to the response's, by
    stage, without a server. The limit is a copy of the same rows from memory of 2 MiB pages, and
    the tower's matrix products in the precision that runs. Requests of one user share 20 of the
    features among their pairs, sent once or for every pair. TorchRec's figures are of its quantized
    model, eager, from a ready KeyedJaggedTensor to the scores, as it is and with its dense parts
    cast to bf16. `make bench-setup` installs it. Takes 10 GB and about two minutes.

    din, sasrec and hstu-small are towers of the zoo with random weights over a history of ids,
    which a request shares among its candidates. It is sent and computed once, or with every
    candidate; beside these the same module in eager torch, and the limit: the matrix products that
    no implementation can leave out, and a copy of the rows.

    On GPUs the command measures MLPerf Inference's scenarios instead, from decoded requests to
    scores. Offline runs batches of 1 to 8 requests. Server sends requests at random times at shares
    of the best offline rate, and shows the highest rate with a p99 within 60 ms.
    """
    check_target(json_file)
    if workload is not EngineWorkload.DLRM_V2:
        bench_sequences(
            workload,
            max_rows=max_rows,
            precisions=precision or (Precision.FP32,),
            history=history,
            candidates=candidates,
            rounds=rounds,
            seconds=seconds,
            json_file=json_file,
        )
        return
    chosen = DlrmV2(max_rows=max_rows, ids=ids)
    if device is not BenchDevice.CPU:
        bench_on_devices(
            chosen,
            device=device,
            topology=topology,
            gpus=gpus,
            precisions=precision or (),
            pairs=pairs,
            seconds=seconds,
            json_file=json_file,
        )
        return
    on_processors(precision)
    with progress_bars() as progress:
        measured = measure_engine(
            chosen,
            precisions=list(dict.fromkeys(precision or (Precision.BF16, Precision.INT8))),
            memory=memory,
            pairs=pairs,
            rounds=rounds,
            seconds=seconds,
            progress=progress,
        )
    _print(measured)
    OUT.print(
        f"\n{workload}, tables cut to {max_rows:,} rows, {ids} ids, {pairs} pairs a request, "
        f"{measured.huge_page_share:.0%} of our tables in 2 MiB pages\n"
        f"one core of {os.cpu_count()}, {machine().class_text}",
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
    ranking = measured.ranking
    fields = {
        "workload": workload,
        "max_rows": max_rows,
        "ids": ids,
        "memory": memory,
        "pairs": pairs,
        "rounds": rounds,
        # For the fastest precision; `towers` has all.
        "precision": measured.fastest,
        **_run_fields(measured, measured.fastest),
        "torchrec_default_pairs_per_second": measured.rate(measured.torchrec_seconds),
        "torchrec_bf16_pairs_per_second": measured.rate(measured.torchrec_bf16_seconds),
        "torchrec_refusal": measured.torchrec_refusal,
        "towers": {one: _run_fields(measured, one) for one in measured.runs},
        "one_user": {
            "user_features": ranking.user_features,
            "user_lookups_a_pair": ranking.user_lookups,
            "expanded_seconds": ranking.expanded_seconds,
            "shared_seconds": ranking.shared_seconds,
            "gain": ranking.gain,
        },
        "core_share": measured.core_share,
        "kernels": {
            "lookup": measured.lookup_backends,
            "instruction_set": machine().class_text,
            "decode": measured.decode_backend,
        },
    }
    write_json(json_file, fields)


def _run_fields(measured: EngineMeasurement, precision: Precision) -> dict[str, object]:
    run = measured.runs[precision]
    limit = run.limit
    return {
        "products": asdict(run.products),
        "pairs_per_second_per_core": measured.rate(run.whole_seconds),
        "limit_fraction": run.limit_fraction,
        "whole_limit_fraction": run.whole_limit_fraction,
        "whole_seconds": run.whole_seconds,
        "stages": run.stages,
        "minor_faults_a_request": run.minor_faults,
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
    }


def _print(measured: EngineMeasurement) -> None:
    # Name, seconds, true if they are of a whole request, and the limit beside them.
    rows: list[tuple[str, float | None, bool, MachineLimit | None]] = []
    for precision, run in measured.runs.items():
        ours, limit = f"ours, {precision}", run.limit
        rows += [(f"  {stage}", seconds, False, None) for stage, seconds in run.stages.items()]
        rows += [
            (f"{ours}, message to response", run.whole_seconds, True, limit),
            (f"{ours}, lookup and tower", run.computing_seconds, True, limit),
            (f"  matrix products, {run.products.running}", limit.matrix_seconds, False, None),
            (f"limit, {precision}", limit.seconds, True, limit),
        ]
    gathers, ranking = measured.runs[measured.fastest].limit, measured.ranking
    rows += [
        ("  gather, 2 MiB pages (in the limits)", gathers.gather_seconds, False, None),
        ("  gather, 4 KiB pages", gathers.gather_4k_seconds, False, None),
        ("TorchRec", measured.torchrec_seconds, True, None),
        ("TorchRec, bf16", measured.torchrec_bf16_seconds, True, None),
        ("one user, its features for every pair", ranking.expanded_seconds, True, None),
        ("one user, its features once", ranking.shared_seconds, True, None),
    ]
    print_table(
        [
            ("", TEXT),
            ("ms a request", times(1e3, ".3g")),
            ("pairs/s", ",.0f"),
            ("limit's share", ".2f"),
        ],
        (
            (
                name,
                seconds,
                measured.rate(seconds) if whole else None,
                None if seconds is None or limit is None else limit.seconds / seconds,
            )
            for name, seconds, whole, limit in rows
        ),
    )
    products = "; ".join(run.products.text for run in measured.runs.values())
    faults = ", ".join(f"{run.minor_faults:g} ({one})" for one, run in measured.runs.items())
    OUT.print(
        f"\none user: {ranking.user_features} of 26 features, {ranking.user_lookups} of 214 "
        f"lookups a pair are the user's: {ranking.gain:.2f} times as fast said once\n"
        f"minor page faults a request: {faults}\n"
        f"products of our towers: {products}",
        highlight=False,
        soft_wrap=True,
    )
