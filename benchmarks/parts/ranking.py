"""Times of requests of one user, with the user's features sent once or for every pair.

Figures are medians of the thread's processor time, so other programs disturb them little.
"""

import tempfile
from enum import StrEnum
from itertools import product
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Annotated

import numpy as np
import torch
import typer
from torch import Tensor, nn

from serving.bench.turns import one_core
from serving.bench.workloads.dlrm_v2 import dlrm_v2, one_user
from serving.bench.workloads.requests import IdDistribution, request_message
from serving.bench.workloads.workload import Workload
from serving.commands.bench.options import on_processors
from serving.commands.bench.report import TEXT, Report, bench_command, times
from serving.host.malloc import keep_freed_memory
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import open_model
from sharded_infer.progress import Progress
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.mlp import MLP

_FEATURES, _CANDIDATES, _DIM, _DENSE = 26, 6, 32, 13
_CANDIDATE_IDS, _USER_IDS = 3, 10  # of a bag
# Uncounted requests: the tower is split meanwhile, and kernels are compiled.
_WARM_UP = 8


class RankingKind(StrEnum):
    """Architectures."""

    DLRM_V2 = "dlrm-v2"
    DEEPFM = "deepfm"
    TWO_TOWER = "two-tower"


class _DeepFM(nn.Module):
    """DeepFM (Guo et al. 2017, arXiv:1703.04247), with linear terms first in the vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.deep = MLP([_FEATURES * _DIM + _DENSE, 400, 400, 400, 1], activate_last=False)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        vectors = embeddings.view(-1, _FEATURES, _DIM)
        total, squares = vectors.sum(1), (vectors * vectors).sum(1)
        pairs = 0.5 * (total * total - squares).sum(1)
        deep = self.deep(torch.cat([dense, embeddings], dim=1)).squeeze(1)
        return torch.sigmoid(vectors[:, :, 0].sum(1) + pairs + deep)


class _TwoTower(nn.Module):
    """Two towers whose cosine is the score, such as Yi et al. 2019 (RecSys)."""

    def __init__(self) -> None:
        super().__init__()
        self.widths = [_CANDIDATES * _DIM, (_FEATURES - _CANDIDATES) * _DIM]
        self.item, self.user = (
            MLP([width, 512, 256, 64], activate_last=False)
            for width in (self.widths[0] + _DENSE, self.widths[1])
        )

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        item, user = torch.split(embeddings, self.widths, dim=1)
        item = nn.functional.normalize(self.item(torch.cat([item, dense], dim=1)), dim=1)
        user = nn.functional.normalize(self.user(user), dim=1)
        return torch.sigmoid(5.0 * (item * user).sum(1))


_SMALL = {RankingKind.DEEPFM: _DeepFM, RankingKind.TWO_TOWER: _TwoTower}


def ranking_model(kind: RankingKind, precision: Precision, rows: int) -> Workload:
    """A model, with `rows` of each table, or the most of a DLRM-v2."""
    if kind is RankingKind.DLRM_V2:
        return dlrm_v2(rows, precision=precision)
    return Workload(
        str(kind),
        (rows,) * _FEATURES,
        _DIM,
        (_CANDIDATE_IDS,) * _CANDIDATES + (_USER_IDS,) * (_FEATURES - _CANDIDATES),
        _SMALL[kind],
        _DENSE,
        distribution=IdDistribution.ZIPF,
        precision=precision,
    )


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
        ranking_model(kind, one, rows)
        for kind, one in product(dict.fromkeys(model or RankingKind), precisions)
    ]
    measured = []
    for one in models:
        with tempfile.TemporaryDirectory(prefix="sharded-infer-bench-") as folder, one_core():
            figures = _measure(one, one.publish(Path(folder)), pairs, requests)
        measured.append({"model": one.name, "precision": one.precision, "pairs": pairs, **figures})
        progress("measuring", len(measured), len(models))
    milliseconds = times(1e3, ".3g")
    return Report(
        [
            ("model", TEXT, "model"),
            ("tower", TEXT, "precision"),
            ("ms, every pair", milliseconds, "every_pair_seconds"),
            ("ms, once", milliseconds, "once_seconds"),
            ("ratio", ".2f", "gain"),
            ("largest difference", ".1g", "largest_difference"),
        ],
        measured,
        [f"processor time of a request of {pairs} pairs, 20 of 26 features the user's"],
        {"measurements": measured},
    )


def _measure(model: Workload, path: Path, pairs: int, requests: int) -> dict[str, float]:
    """Processor seconds of both forms, their largest score difference, and scores' deviation."""
    opened = open_model(path, memory=TableMemory.HUGE, verify=False)
    reader = InputReader(opened.spec, max_batch=pairs)
    generator = np.random.default_rng(0)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    differences, spreads = [], []
    for turn in range(_WARM_UP + requests):
        drawn = model.draw(generator, pairs)
        scores = {}
        for once in (turn % 2 == 0, turn % 2 == 1):
            message = request_message(model.name, one_user(drawn, expanded=not once))
            began = thread_time()
            result = run_batch(opened, reader.read_message(message))
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
