import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

from quant.sources.checkpoint import open_weights
from sharded_infer import record_reference
from sharded_infer.errors import GateError, InputError
from sharded_infer.publishing.publication import publish
from sharded_infer.samples.calibration import read_calibration
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(9, 1)

    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        joined = self.dropout(torch.cat([age, embeddings], 1))
        return torch.sigmoid(self.last(joined)).squeeze(1)


class Ranker(nn.Module):
    """A model as people write them: ids in, a probability out."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(20, 4)
        self.genre = nn.EmbeddingBag(20, 4, mode="mean")
        self.tower = Tower()
        self.calls: list[int] = []

    def forward(self, user: Tensor, genre: Tensor, age: Tensor) -> Tensor:
        assert not self.training and torch.is_inference_mode_enabled()
        self.calls.append(len(user))
        pooled = torch.cat([self.user(user), self.genre(genre)], 1)
        return self.tower(age[:, None], pooled)


RIGHT = ModelSpec(
    "ranker",
    (
        TableSpec("user", rows=20, dim=4, weights="user.weight"),
        TableSpec("genre", rows=20, dim=4, weights="genre.weight", pooling="mean"),
    ),
    DenseSpec({"age": 1}),
)
SWAPPED = ModelSpec(
    "ranker",
    (
        TableSpec("user", rows=20, dim=4, weights="genre.weight"),
        TableSpec("genre", rows=20, dim=4, weights="user.weight", pooling="mean"),
    ),
    DenseSpec({"age": 1}),
)
SUMMED = ModelSpec(
    "ranker",
    (RIGHT.tables[0], TableSpec("genre", rows=20, dim=4, weights="genre.weight", pooling="sum")),
    DenseSpec({"age": 1}),
)


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


def test_columns_and_rows_are_recorded_likewise(ranker: Ranker) -> None:
    by_name = columns()
    rows = [dict(zip(by_name, row, strict=True)) for row in zip(*by_name.values(), strict=True)]
    expected = record_reference(ranker, pandas.DataFrame(by_name))["reference.score"].tolist()
    assert record_reference(ranker, by_name)["reference.score"] == expected
    assert [row["reference.score"] for row in record_reference(ranker, rows)] == expected


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


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, "expected a pandas DataFrame"),
        (3, "got a int"),
        ([], "at least one"),
        ({"a": [1.0], "b": [1.0, 2.0]}, "column 'b': 2 values, expected 1"),
        ({"a": ["x"]}, "column 'a': expected numbers"),
    ],
    ids=str,
)
def test_what_are_no_samples_is_refused(samples: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        record_reference(lambda a, b=0: a, samples)


@pytest.mark.parametrize(
    "returned", [(1.0, 2.0), torch.zeros(3), None, torch.zeros(1, 1, 1)], ids=str
)
def test_what_are_no_scores_is_refused_by_output(returned: object) -> None:
    with pytest.raises(InputError, match=r"output 'score': expected scores \[1\] or \[1, K\]"):
        record_reference(lambda a: returned, {"a": [1.0]})


def test_a_recorded_file_tells_a_right_import_from_wrong_ones(
    ranker: Ranker, tmp_path: Path
) -> None:
    record_reference(ranker, pandas.DataFrame(columns())).to_json(
        tmp_path / "clicks.jsonl", orient="records", lines=True, double_precision=15
    )
    assert "reference.score" in json.loads((tmp_path / "clicks.jsonl").read_text().splitlines()[0])
    torch.save(ranker.state_dict(), tmp_path / "model.pt")

    def made(spec: ModelSpec) -> Any:
        calibration = read_calibration(spec, tmp_path / "clicks.jsonl")
        source = open_weights(tmp_path / "model.pt")
        return publish(spec, source, ranker.tower, tmp_path / "models", calibration=calibration)

    found = made(RIGHT).report.imported
    assert found.samples == 50 and found.max_score_diff < 1e-6
    for wrong in (SWAPPED, SUMMED):
        with pytest.raises(GateError, match=r"output 'score' differs.*reference\.score"):
            made(wrong)
