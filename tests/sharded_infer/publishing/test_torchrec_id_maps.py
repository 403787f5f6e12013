from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sharded_infer.engines.model import open_model
from sharded_infer.importing.id_maps.torchrec_maps import id_maps_of
from sharded_infer.inputs.id_map import hashed_rows_of
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import HashedRows
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, QuantizationSpec, TableSpec
from tests.sharded_infer.importing.id_maps.test_torchrec_maps import MPZCH_OPTIONS
from tests.support.managed_collisions import MOST, fill, mpzch, random_ids, remapped
from tests.support.raw_ids import Sum

# TorchRec's own.
pytestmark = pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
MPZCH: list[dict[str, Any]] = [
    *MPZCH_OPTIONS,
    {"inference_dispatch_div_train_world_size": True},
    {"inference_dispatch_div_train_world_size": True, "input_hash_size": 10**12 + 7},
]


@pytest.mark.parametrize("options", MPZCH, ids=str)
def test_a_version_reads_the_rows_of_its_mpzch_module(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows, size = 2**12, options.get("input_hash_size", 0)
    module = mpzch(rows, 8, **options)
    known, others = random_ids(3000, 1, size or None), random_ids(5000, 2, size or None)
    fill(module, known)
    ids = np.concatenate([known, others, [] if size else [-1, -2, 0, MOST, -(2**63)]])
    ids = ids.astype(np.int64)
    spec = ModelSpec(
        "mpzch",
        (TableSpec("item", rows, 1),),
        dense=DenseSpec({"age": 1}),
        quantization=QuantizationSpec("fp32"),
    )
    # Each row says its number.
    weights = {"item": torch.arange(1.0, rows + 1)[:, None]}
    (source,) = id_maps_of(module).values()
    made = publish(spec, weights, Sum(), tmp_path, id_maps={"item": source})
    model = open_model(made.path)
    asked = {"item": ids, "age": np.zeros((len(ids), 1), np.float32)}
    found = model.predict(asked)["score"].astype(np.int64) - 1
    assert np.array_equal(found, remapped(module, ids))
    checked = InputPolicy(model.spec, model.id_maps).apply(make_input(model.spec, asked))
    assert checked.ids_unknown[0][1] > 3000


def test_ids_that_mpzch_would_look_up_outside_its_table_stay_inside() -> None:
    ids = np.array([10**6, 10**9, -1, 2**63 - 1, -(2**63)])
    for divided in (False, True):
        rows = hashed_rows_of(HashedRows(64, 8, 10**6, divided, None), ids)
        assert ((rows >= 0) & (rows < 64)).all()
