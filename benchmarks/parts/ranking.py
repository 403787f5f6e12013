"""Times of requests of one user, with the user's features sent once or for every pair.

Both forms take turns on one core, with a new request for each turn. Figures are medians of the
thread's processor time from the message to the scores, so other programs disturb them little.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import thread_time
from typing import Annotated

import numpy as np
import typer

from benchmarks.parts.ranking_models import RankingKind, RankingModel
from serving.bench.load.cores import one_core
from serving.commands.bench.report import TEXT, print_notes, print_table, times
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.options.tower_precision import on_processors
from serving.commands.progress_bars import progress_bars
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


@dataclass(frozen=True, slots=True)
class RankingMeasurement:
    """Processor seconds of both forms, their largest score difference, and scores' deviation."""

    model: RankingKind
    precision: Precision
    pairs: int
    every_pair_seconds: float
    once_seconds: float
    largest_difference: float
    score_spread: float

    @property
    def gain(self) -> float:
        """Speed of the features sent once over that of features for every pair."""
        return self.every_pair_seconds / self.once_seconds


def ranking_command(
    model: Annotated[
        list[RankingKind] | None,
        typer.Option(help="Model to rank with; may be repeated.  [default: all]"),
    ] = None,
    precision: Annotated[
        list[Precision] | None,
        typer.Option(help="Precision of the tower; may be repeated.  [default: fp32, bf16, int8]"),
    ] = None,
    pairs: Annotated[int, typer.Option(min=2, help="Candidates of a request.")] = 270,
    rows: Annotated[
        int, typer.Option(min=1, help="Rows of each table; of a DLRM-v2 the most.")
    ] = 100_000,
    requests: Annotated[int, typer.Option(min=1, help="Requests of each form.")] = 100,
    json_file: JsonFileOption = None,
) -> None:
    """Measure a user's features sent once beside sent for every pair.

    20 of 26 features are the user's. The models are MLPerf Inference's DLRM-v2, a DeepFM of three
    layers of 400 and a two-tower model, the last two with tables of dim 32. Both forms take turns
    on one core. Shown is the thread's processor time from the message to the scores. Takes two
    minutes and 2 GB.
    """
    check_target(json_file)
    on_processors(precision)
    chosen = [
        RankingModel(kind, one, rows)
        for kind in dict.fromkeys(model or RankingKind)
        for one in dict.fromkeys(precision or (Precision.FP32, Precision.BF16, Precision.INT8))
    ]
    with progress_bars() as progress:
        measured = measure_ranking(chosen, pairs=pairs, requests=requests, progress=progress)
    milliseconds = times(1e3, ".3g")
    print_table(
        [
            ("model", TEXT), ("tower", TEXT), ("ms, every pair", milliseconds),
            ("ms, once", milliseconds), ("ratio", ".2f"), ("largest difference", ".1g"),
        ],
        (
            (
                one.model, one.precision, one.every_pair_seconds, one.once_seconds, one.gain,
                one.largest_difference,
            )
            for one in measured
        ),
    )  # fmt: skip
    print_notes(f"processor time of a request of {pairs} pairs, 20 of 26 features the user's")
    write_json(json_file, {"measurements": [asdict(one) | {"gain": one.gain} for one in measured]})


def measure_ranking(
    models: Sequence[RankingModel], *, pairs: int, requests: int, progress: Progress
) -> list[RankingMeasurement]:
    """Publish each model in a temporary folder and measure it."""
    keep_freed_memory()
    measured = []
    for number, model in enumerate(models):
        with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder, one_core():
            model.publish(Path(folder))
            measured.append(_measure(model, Path(folder), pairs, requests))
        progress("measuring", number + 1, len(models))
    return measured


def _measure(model: RankingModel, folder: Path, pairs: int, requests: int) -> RankingMeasurement:
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
    return RankingMeasurement(
        model.kind,
        model.precision,
        pairs,
        statistics.median(seconds[False]),
        statistics.median(seconds[True]),
        max(differences),
        statistics.median(spreads),
    )
