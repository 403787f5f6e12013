from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import record_reference
from sharded_infer.errors import InputError


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(9, 1)

    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        joined = self.dropout(torch.cat([age, embeddings], 1))
        return torch.sigmoid(self.last(joined)).squeeze(1)


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(20, 4)
        self.genre = nn.EmbeddingBag(20, 4, mode="mean")
        self.tower = Tower()
        self.calls: list[int] = []

    def forward(self, user: Tensor, genre: Tensor, age: Tensor) -> Tensor:
        assert not self.training and torch.is_inference_mode_enabled()
        self.calls.append(len(user))
        return self.tower(age[:, None], torch.cat([self.user(user), self.genre(genre)], 1))


@pytest.fixture
def ranker() -> Ranker:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return Ranker().train()


def columns(samples: int = 50) -> dict[str, list[Any]]:
    generator = np.random.default_rng(1)
    return {
        "user": generator.integers(0, 20, samples).tolist(),
        "genre": generator.integers(0, 20, (samples, 3)).tolist(),
        "age": generator.random(samples).tolist(),
        "label": generator.integers(0, 2, samples).tolist(),
    }


def test_a_model_is_called_with_tensors_by_name_in_evaluation_mode(ranker: Ranker) -> None:
    frame = pandas.DataFrame(columns())
    recorded = record_reference(ranker, frame, batch=20)
    assert ranker.calls == [20, 20, 10] and ranker.training
    assert list(recorded.columns) == [*frame.columns, "reference.score"]
    ranker.eval()
    with torch.inference_mode():
        expected = ranker(
            torch.tensor(frame["user"]),
            torch.tensor(frame["genre"].tolist()),
            torch.tensor(frame["age"].to_numpy(np.float32)),
        )
    assert recorded["reference.score"].tolist() == pytest.approx(expected.tolist(), abs=1e-7)


def test_inputs_say_how_a_model_takes_bags_of_several_lengths() -> None:
    bag = nn.EmbeddingBag(9, 3, mode="sum")
    frame = pandas.DataFrame({"genre": [[1, 2], [], [8]]})

    def inputs(part: pandas.DataFrame) -> tuple[Tensor, Tensor]:
        lengths = [len(ids) for ids in part["genre"]]
        ids = [i for ids in part["genre"] for i in ids]
        return torch.tensor(ids), torch.tensor([0, *lengths]).cumsum(0)[:-1]

    recorded = record_reference(bag, frame, inputs=inputs, output="vector")
    assert recorded["reference.vector"].tolist()[1] == [0.0, 0.0, 0.0]
    with pytest.raises(InputError, match=r"column 'genre'.*of one length.*`inputs`"):
        record_reference(bag, frame)


def test_a_model_of_several_outputs_returns_them_by_name() -> None:
    def model(age: Tensor) -> dict[str, Tensor]:
        return {"click": age, "rating": torch.stack([age, 2 * age], 1), "buy": age[:, None]}

    recorded = record_reference(model, {"age": [0.5, 1.0]})
    assert recorded == {
        "age": [0.5, 1.0],
        "reference.click": [0.5, 1.0],
        "reference.rating": [[0.5, 1.0], [1.0, 2.0]],
        "reference.buy": [0.5, 1.0],
    }


@pytest.mark.parametrize("returned", [(1.0, 2.0), torch.zeros(3), None, torch.zeros(1, 1, 1)])
def test_what_are_no_scores_is_refused_by_output(returned: object) -> None:
    with pytest.raises(InputError, match=r"output 'score': expected scores \[1\] or \[1, K\]"):
        record_reference(lambda a: returned, {"a": [1.0]})
