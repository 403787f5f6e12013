import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint

from quant.sources.arranged_rows import JoinedRows, OrderedRows
from quant.sources.checkpoint import open_weights
from quant.sources.safetensors_files import SafetensorsSource
from quant.sources.weight_source import SourceError, TensorSource, WeightSource

# Saving without a process group is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

WEIGHT = torch.arange(12.0).view(4, 3)


def safetensors(folder: Path) -> Path:
    save_file({"ads": WEIGHT}, folder / "weights.safetensors")
    return folder / "weights.safetensors"


def index(folder: Path) -> Path:
    # It does not list all that its file holds.
    save_file({"ads": WEIGHT, "users": WEIGHT.clone()}, folder / "weights.safetensors")
    path = folder / "model.safetensors.index.json"
    path.write_text('{"weight_map": {"ads": "weights.safetensors"}}')
    return path


def saved(folder: Path, content: object, suffix: str = ".pt") -> Path:
    path = folder / f"weights{suffix}"
    torch.save(content, path)
    return path


def distributed(folder: Path) -> Path:
    checkpoint.save(
        {"ads": WEIGHT}, storage_writer=checkpoint.FileSystemWriter(folder), no_dist=True
    )
    return folder


def npy(folder: Path) -> Path:
    np.save(folder / "ads.npy", WEIGHT.numpy())
    return folder / "ads.npy"


def npz(folder: Path) -> Path:
    np.savez(folder / "weights.npz", ads=WEIGHT.numpy())
    return folder / "weights.npz"


FILES: dict[str, Callable[[Path], Path]] = {
    "safetensors": safetensors,
    "an index": index,
    "a folder with an index": lambda folder: index(folder).parent,
    ".pt": lambda folder: saved(folder, {"ads": nn.Parameter(WEIGHT), "step": 7, 3: WEIGHT}),
    ".pth": lambda folder: saved(folder, {"state_dict": {"ads": WEIGHT}, "epoch": 3}, ".pth"),
    ".bin": lambda folder: saved(folder, {"model": {"ads": WEIGHT}, "epoch": 3}, ".bin"),
    "npy": npy,
    "a folder of npy": lambda folder: npy(folder).parent,
    "npz": npz,
    "a distributed checkpoint": distributed,
}
MEMORY: dict[str, Callable[[], WeightSource]] = {
    "tensors": lambda: TensorSource({"ads": WEIGHT.clone().requires_grad_()}),
    "arrays": lambda: TensorSource({"ads": WEIGHT.numpy()}),
    "joined": lambda: JoinedRows(
        {"ads": [(TensorSource({"part": rows}), "part") for rows in WEIGHT.split([1, 0, 3])]},
        "all parts",
    ),
    "ordered": lambda: OrderedRows(
        TensorSource({"ads": WEIGHT.flip(0)}), {"ads": np.array([3, 2, 1, 0], np.uint32)}
    ),
}


@pytest.fixture(params=[*FILES, *MEMORY])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> WeightSource:
    if request.param in MEMORY:
        return MEMORY[request.param]()
    path = FILES[request.param](tmp_path)
    source = open_weights(path)
    assert source.description.startswith(str(path))
    return source


def test_every_range_of_rows_is_read(source: WeightSource) -> None:
    assert isinstance(source, WeightSource)
    assert list(source.keys()) == ["ads"]
    assert source.shape("ads") == (4, 3)
    for start in range(5):
        for stop in range(start, 5):
            rows = source.read("ads", start, stop)
            assert torch.equal(rows, WEIGHT[start:stop]) and not rows.requires_grad


def test_rows_and_weights_that_are_not_there_are_refused(source: WeightSource) -> None:
    for start, stop in ((-1, 2), (0, 5), (3, 2), (5, 5)):
        words = rf"'ads' is \[4, 3\]: it has no rows {start} to {stop}"
        with pytest.raises(SourceError, match=words):
            source.read("ads", start, stop)
    words = f"{re.escape(source.description)}: holds no weight 'users'"
    for ask in (lambda: source.shape("users"), lambda: source.read("users", 0, 1)):
        with pytest.raises(SourceError, match=words):
            ask()


@pytest.mark.parametrize("kind", ["npy", "npz", "a distributed checkpoint"])
def test_rows_of_a_file_that_is_mapped_to_be_read_are_copies(kind: str, tmp_path: Path) -> None:
    source = open_weights(FILES[kind](tmp_path))
    source.read("ads", 0, 4).zero_()
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert torch.equal(source.read("ads", 0, 4), WEIGHT)


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


def test_a_number_has_no_rows() -> None:
    with pytest.raises(SourceError, match=r"'step' is \[\]: it has no rows 0 to 1"):
        TensorSource({"step": torch.tensor(3)}).read("step", 0, 1)


@pytest.mark.parametrize("kind", ["safetensors", ".pt", "npy"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(kind: str, kept: float, tmp_path: Path) -> None:
    path = FILES[kind](tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(SourceError, match=f"{path}: not a"):
        open_weights(path)


@pytest.mark.parametrize("kind", ["safetensors", ".pt", "npy"])
def test_a_file_of_something_else_and_none_are_refused(kind: str, tmp_path: Path) -> None:
    path = FILES[kind](tmp_path)
    path.write_text("weights, honestly")
    with pytest.raises(SourceError, match=f"{path}: not a"):
        open_weights(path)
    path.unlink()
    with pytest.raises(SourceError, match=f"{path}: no such weights file or directory"):
        open_weights(path)


# NumPy reads headers that Python 2 wrote, and says so.
@pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("npy", "ads.npy"),
        ("a distributed checkpoint", ".metadata"),
        ("a distributed checkpoint", "__0_0.distcp"),
    ],
)
@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_byte_is_changed_is_refused_or_read(
    kind: str, name: str, data: st.DataObject, tmp_path: Path
) -> None:
    folder = tmp_path / "altered"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = FILES[kind](folder)
    content = bytearray((folder / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / name).write_bytes(content)
    with suppress(SourceError):
        source = open_weights(path)
        for key in list(source.keys()):
            shape = source.shape(key)
            assert source.read(key, 0, shape[0]).shape == shape


@pytest.mark.parametrize("split", [[10], [3, 7], [0, 4, 0, 6, 0]], ids=str)
def test_joined_rows_know_where_each_part_starts(split: list[int]) -> None:
    parts = [TensorSource({"part": rows}) for rows in torch.arange(40).view(10, 4).split(split)]
    source = JoinedRows({"ads": [(part, "part") for part in parts]}, "all parts")
    assert source.starts("ads") == [sum(split[:place]) for place in range(len(split))]
    assert torch.equal(source.read("ads", 2, 9), torch.arange(8, 36).view(7, 4))


def test_parts_that_do_not_fit_together_are_refused() -> None:
    first = TensorSource({"w": torch.zeros(3, 4)}, "the first")
    narrow = TensorSource({"w": torch.zeros(3, 2)}, "the second")
    with pytest.raises(SourceError, match=r"the second: 'w' is \[3, 2\], expected rows of \[4\]"):
        JoinedRows({"ads": [(first, "w"), (narrow, "w")]}, "both")
    half = TensorSource({"w": torch.zeros(3, 4, dtype=torch.float16)}, "the second")
    source = JoinedRows({"ads": [(first, "w"), (half, "w")]}, "both")
    with pytest.raises(SourceError, match="second: 'w' is torch.float16, expected torch.float32"):
        source.read("ads", 0, 6)


WEIGHTS = {"a": torch.randn(500, 3), "b": torch.arange(20, dtype=torch.uint8).reshape(10, 2)}


@pytest.mark.parametrize("kind", ["any", "reversed", "few"])
def test_ranges_are_read_in_the_new_order(kind: str) -> None:
    permuted = np.random.default_rng(1).permutation(500)
    # A few rows first, then the others as they were.
    few = np.concatenate([permuted[:40], np.sort(permuted[40:])])
    order = {"any": permuted, "reversed": np.arange(500)[::-1], "few": few}[kind]
    source = OrderedRows(TensorSource(WEIGHTS), {"a": order.astype(np.uint32)})
    wanted = WEIGHTS["a"][torch.from_numpy(order.copy())]
    for start, stop in ((0, 500), (0, 1), (499, 500), (37, 45), (100, 100), (0, 0), (500, 500)):
        assert torch.equal(source.read("a", start, stop), wanted[start:stop])
    assert source.shape("a") == (500, 3) and list(source.keys()) == ["a", "b"]
    assert torch.equal(source.read("b", 2, 9), WEIGHTS["b"][2:9])


def test_near_rows_are_read_together_and_far_ones_in_bounded_ranges() -> None:
    asked = []

    class Noted(TensorSource):
        def read(self, key: str, start: int, stop: int) -> torch.Tensor:
            asked.append((start, stop))
            return super().read(key, start, stop)

    order = np.concatenate([np.arange(0, 500, 2), np.arange(1, 500, 2)]).astype(np.uint32)
    OrderedRows(Noted(WEIGHTS), {"a": order}).read("a", 0, 250)
    assert asked == [(0, 499)]
    wide = torch.arange(40_000.0)[:, None].expand(40_000, 256)
    # 1 KiB a row: rows 16 apart are read together, 8 MiB at once.
    for step, most in ((16, 8192), (17, 1)):
        order = np.concatenate([np.arange(first, 40_000, step) for first in range(step)])
        asked.clear()
        read = OrderedRows(Noted({"a": wide}), {"a": order.astype(np.uint32)}).read("a", 0, 2000)
        assert torch.equal(read[:, 0], torch.from_numpy(order[:2000]).float())
        assert max(stop - start for start, stop in asked) <= most
        assert len(asked) == (2000 if most == 1 else 4)
