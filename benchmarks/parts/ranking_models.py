"""Models that rank a user's candidates: DLRM-v2, a DeepFM and a two-tower model.

Of 26 features 20 are the user's, and their bags are longer. A DLRM-v2 has its own sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from serving.bench.workloads.dlrm_v2 import USER_FEATURES, DlrmV2
from serving.bench.workloads.drawn_ids import IdDistribution, draw_ids
from serving.bench.workloads.request_message import request_message
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.mlp import MLP

__all__ = ["Arrays", "RankingKind", "RankingModel"]

Arrays = Mapping[str, NDArray[np.generic]]

_FEATURES, _CANDIDATES, _DIM, _DENSE = 26, 6, 32, 13
_CANDIDATE_IDS, _USER_IDS = 3, 10  # of a bag
_SEED = 20261123
_SAMPLES = 256


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


@dataclass(frozen=True, slots=True)
class RankingModel:
    """A model with random requests; `rows` of each table, or the most of a DLRM-v2."""

    kind: RankingKind
    precision: Precision
    rows: int

    @property
    def name(self) -> str:
        """Name of the published model."""
        return str(self.kind)

    def publish(self, repository: Path, progress: Progress = no_progress) -> None:
        """Publish random weights."""
        if self.kind is RankingKind.DLRM_V2:
            self._dlrm.publish(repository, progress)
            return
        tables = tuple(TableSpec(f"C{n}", self.rows, _DIM) for n in range(_FEATURES))
        dense, tower = DenseSpec({"dense": _DENSE}), TowerSpec(precision=self.precision)
        spec = ModelSpec(self.name, tables, dense=dense, tower=tower)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            weights = {table.name: 0.02 * torch.randn(table.rows, _DIM) for table in tables}
            module = _DeepFM() if self.kind is RankingKind.DEEPFM else _TwoTower()
        samples = make_input(spec, self.draw(np.random.default_rng(_SEED), _SAMPLES))
        publish(spec, weights, module, repository, samples=samples, progress=progress)

    def draw(self, generator: np.random.Generator, pairs: int) -> Arrays:
        """Draw a random request with a different user for each pair."""
        if self.kind is RankingKind.DLRM_V2:
            drawn = self._dlrm.draw(generator, pairs)
            return {"dense": drawn.dense} | _by_feature(drawn.ids)
        ids = [
            draw_ids(generator, IdDistribution.ZIPF, self.rows, pairs * count).reshape(pairs, count)
            for count in [_CANDIDATE_IDS] * _CANDIDATES + [_USER_IDS] * (_FEATURES - _CANDIDATES)
        ]
        dense = generator.standard_normal((pairs, _DENSE), dtype=np.float32)
        return {"dense": dense} | _by_feature(ids)

    def message(self, request: Arrays, *, once: bool) -> bytes:
        """Serialize a ModelInferRequest of the first pair's user, sent once or for every pair."""
        pairs = len(request["dense"])
        user = {f"C{number}" for number in USER_FEATURES}
        arrays = {
            name: np.repeat(array[:1], 1 if once else pairs, axis=0) if name in user else array
            for name, array in request.items()
        }
        return request_message(self.name, arrays)

    @property
    def _dlrm(self) -> DlrmV2:
        return DlrmV2(max_rows=self.rows, precision=self.precision)


def _by_feature(ids: Sequence[NDArray[np.int64]]) -> dict[str, NDArray[np.int64]]:
    return {f"C{number}": matrix for number, matrix in enumerate(ids)}
