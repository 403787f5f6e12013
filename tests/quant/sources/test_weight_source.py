from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from quant.sources.weight_source import SafetensorsSource, SourceError, TensorSource, WeightSource

WEIGHT = torch.arange(12.0).view(4, 3)


@pytest.fixture(params=["tensors", "arrays", "safetensors"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> WeightSource:
    if request.param == "tensors":
        return TensorSource({"ads": WEIGHT.clone().requires_grad_()})
    if request.param == "arrays":
        return TensorSource({"ads": WEIGHT.numpy()})
    save_file({"ads": WEIGHT}, tmp_path / "weights.safetensors")
    return SafetensorsSource(tmp_path / "weights.safetensors")


def test_every_range_of_rows_is_read(source: WeightSource) -> None:
    assert isinstance(source, WeightSource)
    assert list(source.keys()) == ["ads"]
    assert source.shape("ads") == (4, 3)
    for start in range(5):
        for stop in range(start, 5):
            rows = source.read("ads", start, stop)
            assert torch.equal(rows, WEIGHT[start:stop]) and not rows.requires_grad


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 5), (3, 2)])
def test_rows_that_are_not_there_are_refused(source: WeightSource, start: int, stop: int) -> None:
    words = rf"{source.description}: 'ads' is \[4, 3\]: it has no rows {start} to {stop}"
    with pytest.raises(SourceError, match=words):
        source.read("ads", start, stop)


def test_a_key_that_is_not_there_is_refused(source: WeightSource) -> None:
    for ask in (lambda: source.shape("users"), lambda: source.read("users", 0, 1)):
        with pytest.raises(SourceError, match=f"{source.description}: holds no weight 'users'"):
            ask()


def test_a_number_has_no_rows() -> None:
    with pytest.raises(SourceError, match=r"'step' is \[\]: it has no rows 0 to 1"):
        TensorSource({"step": torch.tensor(3)}).read("step", 0, 1)


def test_an_array_that_cannot_be_written_is_read_into_a_tensor_that_can() -> None:
    array = np.ones((4, 3), np.float32)
    array.flags.writeable = False
    TensorSource({"ads": array}).read("ads", 0, 4).zero_()
    assert array.all()


def test_rows_of_a_safetensors_file_are_views_of_its_mapping(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"ads": torch.zeros(1000, 100)}, path)
    rows = SafetensorsSource(path).read("ads", 10, 20)
    start, stop = next(
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    )
    assert start < rows.data_ptr() < stop


def test_something_else_than_a_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with pytest.raises(SourceError, match=f"{path}: not a readable safetensors file"):
        SafetensorsSource(path)
    path.write_text("weights, honestly")
    with pytest.raises(SourceError, match=f"{path}: not a readable safetensors file"):
        SafetensorsSource(path)
