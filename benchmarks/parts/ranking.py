"""Times requests of one user: the user's features sent once, and sent for every pair.

Both forms take turns on one core, with a new request for each turn. Figures are medians of the
thread's processor time from the message to the scores, so other programs disturb them little.
"""

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

import numpy as np

from benchmarks.parts.ranking_models import RankingKind, RankingModel
from serving.bench.load.cores import one_core
from serving.host.malloc import keep_freed_memory
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import open_model
from sharded_infer.progress import Progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision

# Requests before those that count: the tower is split meanwhile, and kernels are compiled.
_WARM_UP = 8


@dataclass(frozen=True, slots=True)
class RankingMeasurement:
    """One model in one precision.

    Attributes:
        every_pair_seconds: processor time of a request with the user's features for every pair.
        once_seconds: with the user's features once.
        largest_difference: of the scores of both forms.
        score_spread: the scores' standard deviation.
    """

    model: RankingKind
    precision: Precision
    pairs: int
    every_pair_seconds: float
    once_seconds: float
    largest_difference: float
    score_spread: float

    @property
    def gain(self) -> float:
        """Speed of the form that sends them once over the other's."""
        return self.every_pair_seconds / self.once_seconds


def measure_ranking(
    models: Sequence[RankingModel], *, pairs: int, requests: int, progress: Progress
) -> list[RankingMeasurement]:
    """Publishes each model in a temporary folder and measures it.

    Args:
        requests: of each form, at least 1.
    """
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
