from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kernels.row_format import RowFormat
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes import compared_weights
from sharded_infer.importing.changes.compared_weights import changes_between
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec, TowerSpec
from tests.reference.row_encoding import encode

ROWS, DIM = 100, 8
Tensors = dict[str, Tensor]


def spec_of(**tables: TableSpec) -> ModelSpec:
    return ModelSpec("ranker", tuple(tables.values()), tower=TowerSpec())


SPEC = spec_of(item=TableSpec("item", ROWS, DIM), user=TableSpec("user", ROWS, DIM))


def weights(dtype: torch.dtype = torch.float32) -> Tensors:
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(ROWS, DIM, generator=generator).to(dtype) for name in ("item", "user")
    }


def _saved(path: Path, tensors: Tensors) -> object:
    save_file(tensors, path)
    return path


FORMS: list[Callable[[Path, Tensors], object]] = [
    lambda _path, tensors: tensors,
    _saved,
    lambda path, tensors: str(_saved(path, tensors)),
    lambda _path, tensors: TensorSource(tensors),
    lambda _path, tensors: {
        name: nn.EmbeddingBag.from_pretrained(tensor.float()) for name, tensor in tensors.items()
    },
]


@pytest.fixture(params=[1, 7, ROWS, 1000])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_weights, "_CHUNK_BYTES", request.param * 4 * DIM)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_with_another_bit_and_new_ones_are_found(
    form: Callable[[Path, Tensors], object], dtype: torch.dtype, chunk: None, tmp_path: Path
) -> None:
    old, new = weights(dtype), weights(dtype)
    for row in (0, 6, 7, 99):
        new["item"][row, row % DIM] += 1
    new["item"] = torch.cat([new["item"], torch.zeros(5, DIM, dtype=dtype)])
    changes = changes_between(
        form(tmp_path / "old.safetensors", old), form(tmp_path / "new.safetensors", new), SPEC
    )
    assert changes.keys() == {"item"}
    assert changes["item"].ids.tolist() == [0, 6, 7, 99, *range(100, 105)]
    assert changes["item"].ids.dtype == np.int64
    assert changes["item"].values is not None
    assert changes["item"].values.equal(new["item"][changes["item"].ids].float())


def test_bits_are_compared_not_numbers() -> None:
    old, new = weights(), weights()
    old["item"][3], new["item"][3] = 0.0, -0.0
    old["item"][4] = new["item"][4] = float("nan")
    assert changes_between(old, new, SPEC)["item"].ids.tolist() == [3]


@pytest.mark.parametrize("row_format", [RowFormat.INT8, RowFormat.INT4])
def test_quantized_rows_are_taken_over_as_they_are(row_format: RowFormat, chunk: None) -> None:
    spec = spec_of(item=TableSpec("item", ROWS, DIM, format=row_format))
    old = weights()["item"]
    new = old.clone()
    new[[5, 50]] += 1
    # TorchRec rounds rows up to 16 bytes; what is in them does not count.
    one, other = (
        torch.cat([encode(row_format, rows), torch.full((ROWS, 16), fill)], 1)[:, :16]
        for rows, fill in ((old, 0), (new, 9))
    )
    changed = changes_between({"item": one.byte()}, {"item": other.byte()}, spec)["item"]
    assert changed.ids.tolist() == [5, 50]
    assert changed.row_format is row_format and changed.stored is not None
    assert changed.stored.equal(encode(row_format, new[[5, 50]]))


def test_what_cannot_be_compared_is_refused() -> None:
    old, new = weights(), weights()
    with pytest.raises(WeightsError, match="table 'user': the state dict holds none of 'user'"):
        changes_between(old, {"item": new["item"]}, SPEC)
    with pytest.raises(WeightsError, match="'item': expected at least the 100 rows of .*, got 99"):
        changes_between(old, new | {"item": new["item"][:99]}, SPEC)
    with pytest.raises(WeightsError, match=r"table 'item': the spec says 100 rows of dim 8, but"):
        changes_between(old, new | {"item": new["item"][:, :4]}, SPEC)
    with pytest.raises(WeightsError, match="'item': .* rows of one form, got numbers in .*int8"):
        changes_between(old, new | {"item": encode(RowFormat.INT8, new["item"])}, SPEC)
    with pytest.raises(WeightsError, match=r"none.pt: no such weights file"):
        changes_between(old, Path("none.pt"), SPEC)
    mapped = spec_of(item=TableSpec("item", ROWS, DIM, id_map=IdMapSpec()))
    with pytest.raises(WeightsError, match="table 'item': has an id map, so that one row may be"):
        changes_between(old, new, mapped)
