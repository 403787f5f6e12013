"""Histories padded with zeros and sent without lengths: a word, once for a model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer.engines.model import open_model
from sharded_infer.engines.zero_padding import ZeroPadding
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.serving.inference.planes import plane_of
from tests.support.servers import infer_request

LENGTH = 20
TOLD = "input 'seen': 16 of 16 samples"
BAGS = ModelSpec("bags", (TableSpec("item", 50, 4, features=("seen",)),))
HISTORY = replace(BAGS, sequences={"history": SequenceSpec(LENGTH, ("seen",))})


class Sum(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1)


def histories(samples: int, used: int) -> dict[str, NDArray[np.int64]]:
    ids = np.random.default_rng(0).integers(1, 50, (samples, LENGTH))
    return {"seen": np.where(np.arange(LENGTH) < used, ids, 0)}


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        (BAGS, "'seen.lengths' with padded ids, or set padding_idx = 0 of table 'item'"),
        (HISTORY, "'history.lengths' with padded ids"),
    ],
)
def test_padding_that_is_read_as_ids_is_told_once(
    spec: ModelSpec, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    padding = ZeroPadding(spec)
    for _ in range(5):
        padding.look(make_input(spec, histories(4, LENGTH - 2)))
    assert [record.message for record in caplog.records] == [
        "input 'seen': 8 of 8 samples are 20 ids long and end in zeros, which are read as id 0: "
        f"send {advice}"
    ]


@pytest.mark.parametrize(
    ("spec", "inputs"),
    [
        (BAGS, histories(16, LENGTH)),
        (BAGS, {name: ids[:, -3:] for name, ids in histories(16, 15).items()}),
        (HISTORY, histories(16, LENGTH - 1)),
        (HISTORY, histories(7, 9)),
        (HISTORY, {**histories(16, 9), "history.lengths": np.repeat([9, 8], 8)}),
        (replace(BAGS, tables=(replace(BAGS.tables[0], padding_idx=0),)), histories(16, 9)),
        (
            replace(BAGS, tables=(replace(BAGS.tables[0], id_steps={"seen": (("add", 1),)}),)),
            histories(16, 9),
        ),
        *(
            (replace(HISTORY, sequences={"history": sequence}), histories(16, 9))
            for sequence in (
                SequenceSpec(LENGTH, ("seen",), ids=("seen",)),
                SequenceSpec(9, ("seen",), min_length=9),
            )
        ),
    ],
    ids=[
        *("no zeros", "short", "one zero", "few samples", "lengths", "padding_idx", "steps"),
        *("ids", "one length"),
    ],
)
def test_what_is_no_padding_is_not_told(
    spec: ModelSpec, inputs: dict[str, NDArray[np.int64]], caplog: pytest.LogCaptureFixture
) -> None:
    ZeroPadding(spec).look(make_input(spec, inputs))
    assert caplog.records == []


def test_publishing_and_predictions_tell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tables, samples = {"item": torch.randn(50, 4)}, histories(16, 9)
    path = publish(BAGS, tables, Sum(), tmp_path, samples=samples).path
    assert caplog.text.count(TOLD) == 1
    caplog.clear()
    model = open_model(path)
    for _ in range(2):
        model.predict(samples)
    assert caplog.text.count(TOLD) == 1


def test_a_server_tells_of_requests_though_it_warmed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish(BAGS, {"item": torch.randn(50, 4)}, Sum(), tmp_path)
    request = infer_request(histories(16, 9), model="bags").SerializeToString()
    served = plane_of(tmp_path, "bags")
    assert TOLD not in caplog.text
    for _ in range(2):
        assert served.send(request) is not None
        served.work_off()
    assert [type(outcome) for outcome in served.outcomes] == [bytes, bytes]
    assert caplog.text.count(TOLD) == 1
