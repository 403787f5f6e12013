"""Towers over a user's history, with random weights, and their matrix products."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.specs.model_spec import GateSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import AGE, ARCHITECTURES, HISTORY, build_tower

DIM = 64
_ATTENTION, _HEADS, _BLOCKS = 36, 2, 2
_TOP = (200, 80, 1)


class MatrixProduct(NamedTuple):
    """`times` products `[rows, inner] x [inner, columns]` of fp32, or of the tower's precision.

    With `has_weight` the right factor is a parameter, which may be packed and have few bits.
    """

    rows: int
    inner: int
    columns: int
    times: int = 1
    has_weight: bool = True


@dataclass(frozen=True, slots=True)
class SequenceModel:
    """An architecture of the zoo with sizes, and the products that no implementation can leave out.

    For L positions and C candidates: the history's once, the candidates' once for each.
    """

    name: str
    architecture: str
    options: Mapping[str, object]
    products: Callable[[int, int], list[MatrixProduct]]

    def spec(self, *, rows: int, history: int, precision: Precision) -> ModelSpec:
        """One table that serves candidate and history."""
        companions = ARCHITECTURES[self.architecture].companions or ()
        return ModelSpec(
            name=self.name,
            tables=(TableSpec("item", rows, DIM, features=("candidate", HISTORY)),),
            tower=TowerSpec(precision=precision, user_inputs=(HISTORY,)),
            gate=GateSpec(max_score_diff=1.0),
            sequences={
                HISTORY: SequenceSpec(
                    max_length=history,
                    features=(HISTORY,),
                    dense=dict.fromkeys(companions, 1),
                )
            },
        )

    def tower(self, history: int) -> nn.Module:
        """The module with random weights, the same at every call."""
        torch.manual_seed(0)
        companions = ARCHITECTURES[self.architecture].companions or ()
        sizes = SequenceSizes((DIM,), history, dict.fromkeys(companions, 1))
        tower = build_tower(
            self.architecture,
            dense_inputs={},
            feature_dims=(DIM,),
            options=self.options,
            sequences={HISTORY: sizes},
        )
        # Zero parameters would be constants, which compute faster than trained values.
        with torch.no_grad():
            for parameter in tower.parameters():
                if not parameter.any():
                    parameter.normal_(std=0.1)
        return tower.eval()

    def request(
        self, spec: ModelSpec, generator: np.random.Generator, candidates: int, length: int,
        *, once: bool,
    ) -> ModelInput:  # fmt: skip
        """A history and candidates, uniform over the rows; each has a history without `once`."""
        arrays = self.history(spec, generator, length)
        if not once:
            arrays = {name: np.tile(one, (candidates, 1)) for name, one in arrays.items()}
        arrays["candidate"] = generator.integers(0, spec.tables[0].rows, candidates)
        return InputPolicy(spec).apply(make_input(spec, arrays))

    def history(
        self, spec: ModelSpec, generator: np.random.Generator, length: int
    ) -> dict[str, NDArray[np.generic]]:
        """A user's inputs `[1, length]`: ids, uniform over the rows, and their companions."""
        ids = generator.integers(0, spec.tables[0].rows, (1, length))
        inputs: dict[str, NDArray[np.generic]] = {HISTORY: ids}
        if spec.sequences[HISTORY].dense:
            ages = np.sort(generator.exponential(1e6, (1, length)).astype(np.float32))
            inputs[AGE] = np.ascontiguousarray(ages[:, ::-1])
        return inputs


def _din(length: int, candidates: int) -> list[MatrixProduct]:
    pairs = length * candidates
    return [
        MatrixProduct(pairs, DIM, _ATTENTION),
        MatrixProduct(length, DIM, _ATTENTION),
        MatrixProduct(candidates, DIM, _ATTENTION),
        MatrixProduct(pairs, _ATTENTION, 1),
        MatrixProduct(candidates, length, DIM, has_weight=False),
        *_mlp(candidates, (2 * DIM, *_TOP)),
    ]


def _sasrec(length: int, candidates: int) -> list[MatrixProduct]:
    block = [
        MatrixProduct(length, DIM, 3 * DIM),
        *_attention(length),
        MatrixProduct(length, DIM, DIM, times=3),
    ]
    last = MatrixProduct(candidates, DIM, 1, has_weight=False)
    return [MatrixProduct(length, DIM, DIM), *block * _BLOCKS, last]


def _hstu(length: int, candidates: int) -> list[MatrixProduct]:
    layer = [
        MatrixProduct(length, DIM, 4 * DIM),
        *_attention(length),
        MatrixProduct(length, DIM, DIM),
    ]
    return [
        MatrixProduct(length, DIM, DIM),
        *layer * _BLOCKS,
        *_mlp(candidates, (3 * DIM, *_TOP)),
    ]


def _attention(length: int) -> list[MatrixProduct]:
    """Products of each position with every other; torch does not skip later positions either."""
    of_head = DIM // _HEADS
    return [
        MatrixProduct(length, of_head, length, _HEADS, has_weight=False),
        MatrixProduct(length, length, of_head, _HEADS, has_weight=False),
    ]


def _mlp(rows: int, sizes: tuple[int, ...]) -> list[MatrixProduct]:
    return [MatrixProduct(rows, *pair) for pair in pairwise(sizes)]


SEQUENCE_MODELS: Mapping[str, SequenceModel] = MappingProxyType(
    {
        one.name: one
        for one in (
            SequenceModel("din", "din", {"attention": _ATTENTION, "top": [*_TOP]}, _din),
            SequenceModel("sasrec", "sasrec", {"blocks": _BLOCKS, "heads": _HEADS}, _sasrec),
            SequenceModel(
                "sasrec-forward", "sasrec-forward", {"blocks": _BLOCKS, "heads": _HEADS}, _sasrec
            ),
            SequenceModel(
                "hstu-small",
                "hstu",
                {"layers": _BLOCKS, "heads": _HEADS, "time_buckets": 64, "top": [*_TOP]},
                _hstu,
            ),
        )
    }
)
