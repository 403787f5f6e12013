"""A published ranker over the sequence of a user's items, and the scores of its modules."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer import Model, ModelSpec, QuantizationSpec, TableSpec, open_model, publish
from sharded_infer.specs.model_spec import DenseSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

ITEMS, ACTIONS, LONGEST = 40, 5, 6
SPEC = ModelSpec(
    "seen",
    (
        TableSpec("item", ITEMS, 8, features=("candidate", "seen")),
        TableSpec("action", ACTIONS, 4, out_of_range="ignore", padding_idx=0),
    ),
    DenseSpec({"price": 1}),
    tower=TowerSpec(user_inputs=("history",)),
    quantization=QuantizationSpec("fp32"),
    sequences={"history": SequenceSpec(LONGEST, ("seen", "action"), {"age": 1, "place": 2})},
)
MEMBERS = SPEC.sequences["history"].members


class Tower(nn.Module):
    """Attention of the candidate over the sequence, fading with age."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(12 + 2, 8)
        self.top = nn.Sequential(nn.Linear(8 + 8 + 1, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(
        self,
        price: Tensor,
        history: Tensor,
        history_lengths: Tensor,
        age: Tensor,
        place: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        keys = self.key(torch.cat([history, place], dim=2))
        logits = torch.matmul(keys, embeddings.unsqueeze(2)).squeeze(2) - age.squeeze(2)
        places = torch.arange(history.shape[1], device=history.device)
        there = places < history_lengths.unsqueeze(1)
        weights = torch.softmax(logits.masked_fill(~there, -1e9), dim=1) * there
        state = torch.matmul(weights.unsqueeze(1), keys).squeeze(1)
        return self.top(torch.cat([embeddings, state, price], dim=1)).squeeze(1)


@dataclass(frozen=True, slots=True)
class SequenceModel:
    items: Tensor
    actions: Tensor
    tower: Tower
    repository: Path
    model: Model

    def scores(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Scores of the modules, sample by sample, of inputs as `sequence_request` makes them."""
        ends = np.cumsum(inputs["history.lengths"])
        scores = []
        for sample, (end, length) in enumerate(zip(ends, inputs["history.lengths"], strict=True)):
            part = slice(max(end - LONGEST, end - length), end)
            count = part.stop - part.start
            actions = inputs["action"][part]
            known = (actions > 0) & (actions < ACTIONS)
            rows = self.actions[np.where(known, actions, 0)] * torch.tensor(known)[:, None]
            history = torch.cat([self.items[inputs["seen"][part]], rows], dim=1)
            arrays = [history, *(torch.from_numpy(inputs[name][part]) for name in MEMBERS[2:])]
            # An empty sequence has one position of padding.
            rows, age, place = (
                torch.cat([array.reshape(count, width), torch.zeros(int(count == 0), width)])[None]
                for array, width in zip(arrays, (12, 1, 2), strict=True)
            )
            with torch.no_grad():
                score = self.tower(
                    price=torch.from_numpy(inputs["price"][sample : sample + 1]),
                    history=rows,
                    history_lengths=torch.tensor([count]),
                    age=age,
                    place=place,
                    embeddings=self.items[inputs["candidate"][sample : sample + 1]],
                )
            scores.append(float(score))
        return np.array(scores, np.float32)


def publish_sequences(folder: Path) -> SequenceModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        items, actions, tower = torch.randn(ITEMS, 8), torch.randn(ACTIONS, 4), Tower()
    tables = {
        "item": nn.Embedding.from_pretrained(items),
        "action": nn.Embedding.from_pretrained(actions, padding_idx=0),
    }
    published = publish(SPEC, tables, tower, folder, topologies=("cpu:2",))
    return SequenceModel(items, actions, tower, folder, open_model(published.path))


def sequence_request(seed: int, batch: int | None = None) -> dict[str, NDArray[Any]]:
    """Inputs by name, with one sequence for each sample; some are empty, and some too long."""
    generator = np.random.default_rng(seed)
    batch = batch or int(generator.integers(1, 9))
    lengths = generator.integers(0, LONGEST + 4, batch).astype(np.int32)
    count = int(lengths.sum())
    return {
        "price": generator.random((batch, 1), np.float32),
        "candidate": generator.integers(0, ITEMS, batch),
        "seen": generator.integers(0, ITEMS, count),
        "history.lengths": lengths,
        "action": generator.integers(0, ACTIONS + 2, count),
        "age": generator.random(count, np.float32),
        "place": generator.random((count, 2), np.float32),
    }
