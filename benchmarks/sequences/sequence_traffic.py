"""Requests for a tower over histories: of users with short and long ones, and of frequent users."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from serving.bench.workloads.requests import IdDistribution, draw_ids, request_message
from serving.bench.workloads.sequence_models import SequenceModel
from sharded_infer.progress import Progress
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.zoo.registry import HISTORY

_SEED = 20261124


@dataclass(frozen=True, slots=True)
class SequenceTraffic:
    """Requests of one model; the candidates of each share one history."""

    model: SequenceModel
    spec: ModelSpec
    candidates: int

    def publish(self, repository: Path, progress: Progress) -> None:
        [table] = self.spec.tables
        tower = self.model.tower(self.spec.sequences[HISTORY].max_length)
        weights = {table.name: nn.Embedding(table.rows, table.dim)}
        publish(self.spec, weights, tower, repository, progress=progress)

    def of_lengths(self, lengths: Iterable[int]) -> list[bytes]:
        """A ModelInferRequest for each length of a history, each of another user."""
        return [
            self._message(np.random.default_rng((_SEED, number)), length, number)
            for number, length in enumerate(lengths)
        ]

    def of_users(self, users: Iterable[int], length: int, seed: int) -> list[bytes]:
        """A ModelInferRequest for each user, whose history is always the same."""
        return [
            self._message(np.random.default_rng((_SEED, user)), length, (seed, number))
            for number, user in enumerate(users)
        ]

    def _message(
        self, of_user: np.random.Generator, length: int, seed: int | tuple[int, int]
    ) -> bytes:
        inputs = self.model.history(self.spec, of_user, length)
        rows = self.spec.tables[0].rows
        inputs["candidate"] = np.random.default_rng(seed).integers(0, rows, self.candidates)
        return request_message(self.spec.name, inputs)


def lognormal_lengths(count: int, *, shortest: int, longest: int) -> NDArray[np.int64]:
    """Lognormal lengths of histories, int64 `[count]`, the same at every call.

    The median is the geometric mean of the bounds, which are two standard deviations of the
    logarithm away from it; the 5% beyond them are moved to them.
    """
    low, high = np.log(shortest), np.log(longest)
    drawn = np.random.default_rng(_SEED).lognormal((low + high) / 2, (high - low) / 4, count)
    return np.clip(np.rint(drawn), shortest, longest).astype(np.int64)


def zipf_users(count: int, users: int, seed: int) -> NDArray[np.int64]:
    """The user of each request, int64 `[count]` in `[0, users)`: few users send many."""
    return draw_ids(np.random.default_rng((_SEED, seed)), IdDistribution.ZIPF, users, count)
