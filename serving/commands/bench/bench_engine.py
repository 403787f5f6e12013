"""Times of lookups and tower in this process, beside TorchRec and the machine's limit."""

from enum import StrEnum
from typing import Annotated

import typer

from serving.bench.turns import Turns
from serving.bench.workloads.dlrm_v2 import DEFAULT_MAX_ROWS, dlrm_v2
from serving.bench.workloads.requests import IdDistribution
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.commands.bench.engine_devices import BenchDevice, bench_on_devices
from serving.commands.bench.engine_dlrm import bench_dlrm
from serving.commands.bench.engine_sequences import bench_sequences
from serving.commands.bench.options import PairsOption, RoundsOption, on_processors
from serving.commands.bench.report import Report, bench_command
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.device.device_choice import DeviceChoice, parse_gpus
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision


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
    chosen = dlrm_v2(max_rows, ids)
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
    return bench_dlrm(
        chosen,
        precisions=precision or (Precision.BF16, Precision.INT8),
        memory=memory,
        pairs=pairs,
        turns=turns,
    )
