"""Times of lookups and tower in this process, beside TorchRec and the machine's limit."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import typer

from serving.bench.parts.engine import measure_engine
from serving.bench.turns import Turns
from serving.bench.workloads.dlrm_v2 import DEFAULT_MAX_ROWS, DlrmV2
from serving.bench.workloads.drawn_ids import IdDistribution
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.bench.engine_devices import BenchDevice, bench_on_devices
from serving.commands.bench.engine_sequences import bench_sequences
from serving.commands.bench.options import PairsOption, RoundsOption
from serving.commands.bench.report import TEXT, Report, bench_command, times
from serving.commands.options.tower_precision import on_processors
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice, parse_gpus
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import HostProducts

_WHOLE_CORE = 0.97  # an idle machine leaves this much of a core, or more


class EngineWorkload(StrEnum):
    """A model that TorchRec has too, or a tower over a user's history."""

    DLRM_V2 = "dlrm-v2"
    DIN = "din"
    SASREC = "sasrec"
    HSTU_SMALL = "hstu-small"


@bench_command
def bench_engine_command(
    progress: Progress,
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
    pairs: PairsOption = 270,
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
    rounds: RoundsOption = 5,
) -> Report:
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
    turns = Turns(rounds, seconds, progress)
    if workload is not EngineWorkload.DLRM_V2:
        return bench_sequences(
            SEQUENCE_MODELS[workload],
            max_rows=max_rows,
            precisions=precision or (Precision.FP32,),
            history=history,
            candidates=candidates,
            turns=turns,
        )
    chosen = DlrmV2(max_rows=max_rows, ids=ids)
    if device is not BenchDevice.CPU:
        choice = DeviceChoice(parse_gpus(gpus), device is BenchDevice.SIMULATED)
        return bench_on_devices(
            chosen,
            choice,
            device=device,
            topology=topology,
            precisions=precision or (Precision.TF32, Precision.BF16),
            pairs=pairs,
            seconds=seconds,
            progress=progress,
        )
    on_processors(precision)
    measured = measure_engine(
        chosen,
        precisions=list(dict.fromkeys(precision or (Precision.BF16, Precision.INT8))),
        memory=memory,
        pairs=pairs,
        turns=turns,
    )
    notes = [
        *_notes(measured),
        f"{workload}, tables cut to {max_rows:,} rows, {ids} ids, {pairs} pairs a request, "
        f"{measured['huge_page_share']:.0%} of our tables in 2 MiB pages; one core",
    ]
    if measured["core_share"] < _WHOLE_CORE:
        notes.append(
            f"this process had {measured['core_share']:.0%} of the core: others ran there too, and "
            "the figures are too slow"
        )
    if measured["torchrec_refusal"] is not None:
        notes.append(measured["torchrec_refusal"])
    settings = {"workload": workload, "max_rows": max_rows, "ids": ids, "memory": memory}
    return Report(
        [
            ("", TEXT), ("ms a request", times(1e3, ".3g")), ("pairs/s", ",.0f"),
            ("limit's share", ".2f"),
        ],
        _rows(measured),
        notes,
        {**settings, **measured},
    )  # fmt: skip


def _rows(measured: dict[str, Any]) -> Iterator[tuple[str, float | None, float | None, object]]:
    """Name, seconds and pairs a second of whole requests and their parts, and the limit's share."""
    pairs, user = measured["pairs"], measured["one_user"]
    for precision, run in measured["towers"].items():
        stages, limit = run["stages"], run["limit"]
        for stage, seconds in stages.items():
            yield f"  {stage}", seconds, None, None
        computing, whole = stages["lookup"] + stages["tower"], run["whole_seconds"]
        ours, running = f"ours, {precision}", run["products"]["running"]
        yield f"{ours}, message to response", whole, pairs / whole, run["whole_limit_fraction"]
        yield f"{ours}, lookup and tower", computing, pairs / computing, run["limit_fraction"]
        yield f"  matrix products, {running}", limit["matrix_seconds"], None, None
        yield f"limit, {precision}", limit["seconds"], pairs / limit["seconds"], 1.0
    gathers = measured["limit"]
    yield "  gather, 2 MiB pages (in the limits)", gathers["gather_seconds"], None, None
    yield "  gather, 4 KiB pages", gathers["gather_4k_seconds"], None, None
    for name, kind in (("TorchRec", "default"), ("TorchRec, bf16", "bf16")):
        rate = measured[f"torchrec_{kind}_pairs_per_second"]
        yield name, rate and pairs / rate, rate, None
    for name, kind in (("for every pair", "expanded"), ("once", "shared")):
        seconds = user[f"{kind}_seconds"]
        yield f"one user, its features {name}", seconds, pairs / seconds, None


def _notes(measured: dict[str, Any]) -> list[str]:
    towers, user = measured["towers"], measured["one_user"]
    faults = (f"{run['minor_faults_a_request']:g} ({one})" for one, run in towers.items())
    products = (HostProducts(**run["products"]).text for run in towers.values())
    return [
        f"\none user: {user['user_features']} of 26 features, {user['user_lookups_a_pair']} of 214 "
        f"lookups a pair are the user's: {user['gain']:.2f} times as fast said once",
        f"minor page faults a request: {', '.join(faults)}",
        f"products of our towers: {'; '.join(products)}\n",
    ]
