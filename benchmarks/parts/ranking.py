"""Times of requests of one user, with the user's features sent once or for every pair.

Both forms take turns on one core, with a new request for each turn. Figures are medians of the
thread's processor time from the message to the scores, so other programs disturb them little.
"""

import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Annotated

import numpy as np
import typer

from benchmarks.parts.ranking_models import RankingKind, RankingModel
from serving.bench.load.cores import one_core
from serving.commands.bench.report import TEXT, Form, Report, bench_command, times
from serving.commands.options.tower_precision import on_processors
from serving.host.malloc import keep_freed_memory
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import open_model
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision

# Uncounted requests: the tower is split meanwhile, and kernels are compiled.
_WARM_UP = 8


@bench_command
def ranking_command(
    progress: Progress,
    model: Annotated[
        list[RankingKind] | None,
        typer.Option(help="Model to rank with; may be repeated.  [default: all]"),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(
            help="Precision of the tower; may be repeated.  [default: fp32, bf16, int8]",
            callback=on_processors,
        ),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Candidates of a request.")] = 270,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of each table; of a DLRM-v2 the most.")
    ] = 100_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each form.")] = 100,
) -> Report:
    """Measure a user's features sent once beside sent for every pair.

    20 of 26 features are the user's. The models are MLPerf Inference's DLRM-v2, a DeepFM of three
    layers of 400 and a two-tower model, the last two with tables of dim 32. Both forms take turns
    on one core. Shown is the thread's processor time from the message to the scores. Takes two
    minutes and 2 GB.
    """
    keep_freed_memory()
    precisions = dict.fromkeys(precision or (Precision.FP32, Precision.BF16, Precision.INT8))
    models = [
        RankingModel(kind, one, rows)
        for kind, one in product(dict.fromkeys(model or RankingKind), precisions)
    ]
    measured = []
    for one in models:
        with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder, one_core():
            one.publish(Path(folder))
            figures = _measure(one, Path(folder), pairs, requests)
        measured.append({"model": one.kind, "precision": one.precision, "pairs": pairs, **figures})
        progress("measuring", len(measured), len(models))
    milliseconds = times(1e3, ".3g")
    columns: dict[str, tuple[str, Form]] = {
        "model": ("model", TEXT),
        "precision": ("tower", TEXT),
        "every_pair_seconds": ("ms, every pair", milliseconds),
        "once_seconds": ("ms, once", milliseconds),
        "gain": ("ratio", ".2f"),
        "largest_difference": ("largest difference", ".1g"),
    }
    return Report(
        list(columns.values()),
        [[fields[key] for key in columns] for fields in measured],
        [f"processor time of a request of {pairs} pairs, 20 of 26 features the user's"],
        {"measurements": measured},
    )


def _measure(model: RankingModel, folder: Path, pairs: int, requests: int) -> dict[str, float]:
    """Processor seconds of both forms, their largest score difference, and scores' deviation."""
    path = Repository(folder).open(model.name).path
    opened = open_model(path, memory=TableMemory.HUGE, verify=False)
    reader = InputReader(opened.spec, max_batch=pairs)
    generator = np.random.default_rng(0)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    differences, spreads = [], []
    for turn in range(_WARM_UP + requests):
        drawn = model.draw(generator, pairs)
        scores = {}
        for once in (turn % 2 == 0, turn % 2 == 1):
            message = model.message(drawn, once=once)
            began = thread_time()
            [result] = run_batch(opened, [reader.read_message(message)])
            taken = thread_time() - began
            scores[once] = result.scores[0]
            if turn >= _WARM_UP:
                seconds[once].append(taken)
        differences.append(float(np.abs(scores[True] - scores[False]).max()))
        spreads.append(float(scores[False].std()))
    every_pair, once_each = median(seconds[False]), median(seconds[True])
    return {
        "every_pair_seconds": every_pair,
        "once_seconds": once_each,
        "largest_difference": max(differences),
        "score_spread": median(spreads),
        "gain": every_pair / once_each,
    }
