"""A model with sequences of each kind, one of which the candidates of a request share."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sharded_infer import publish
from tests.compatibility.plain_models import SAMPLES, TOPOLOGIES, Arrays, rows_of, spec_of

HISTORIES = """
name = "histories"
[tower]
user_inputs = ["seen"]
[gate]
max_score_diff = 64.0
[[tables]]
name = "item"
rows = 60
dim = 8
format = "int8"
features = ["candidate", "clicks"]
[[tables]]
name = "kind"
rows = 6
dim = 4
format = "fp16"
padding_idx = 0
[[tables]]
name = "shop"
rows = 9
dim = 4
format = "int4"
out_of_range = "ignore"
[sequences.seen]
max_length = 6
features = ["clicks", "kind"]
dense = { age = 1 }
[sequences.shops]
max_length = 4
features = ["shop"]
keep = "first"
pad = "left"
pad_to = "max_length"
"""


class SumOfHistories(nn.Module):
    """Sums of sixteenths and halves, which fp32 holds in any order."""

    def forward(
        self,
        seen: Tensor,
        seen_lengths: Tensor,
        age: Tensor,
        shops: Tensor,
        shops_lengths: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        """The score `[B]`; places count."""
        by_age = (_to_sixteenths(seen) * age).sum((1, 2))
        steps = torch.arange(1, 5).to(torch.float32)[:, None]
        by_place = (_to_sixteenths(shops) * steps).sum((1, 2))
        lengths = (seen_lengths + shops_lengths).to(torch.float32)
        return by_age + by_place + _to_sixteenths(embeddings).sum(1) + lengths


def publish_histories(repository: Path, folder: Path) -> Arrays:
    """A version; returns a request."""
    spec = spec_of(HISTORIES, folder)
    publish(
        spec,
        rows_of(spec, seed=61),
        SumOfHistories(),
        repository,
        topologies=TOPOLOGIES[:2],
        samples=histories_of(seed=62),
    )
    return histories_of(seed=63)


def histories_of(seed: int) -> Arrays:
    """A request with a history for each sample: some are empty, and some too long."""
    generator = np.random.default_rng(seed)
    arrays: Arrays = {"candidate": generator.integers(0, 60, (SAMPLES, 1))}
    lengths = generator.integers(0, 9, SAMPLES).astype(np.int32)
    count = int(lengths.sum())
    for name, rows in (("clicks", 60), ("kind", 6)):
        arrays |= {name: generator.integers(0, rows, count), f"{name}.lengths": lengths}
    arrays |= {"age": generator.integers(1, 5, count).astype(np.float32) / 2}
    arrays["age.lengths"] = lengths
    shops = generator.integers(0, 7, SAMPLES).astype(np.int32)
    arrays |= {"shop": generator.integers(0, 12, int(shops.sum())), "shop.lengths": shops}
    return arrays


def _to_sixteenths(values: Tensor) -> Tensor:
    return torch.round(values.clamp(-7.9, 7.9) * 16) / 16
