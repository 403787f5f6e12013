"""Trained weights from files and objects, and everything that is not them."""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quant.source import (
    SafetensorsSource,
    SourceError,
    TensorSource,
    WeightSource,
    check_table,
    find_table,
    open_weights,
    weights_of,
)

WEIGHT = torch.arange(12.0).view(4, 3)


class Collection(nn.Module):
    """A module with the shape of TorchRec's EmbeddingBagCollection."""

    def __init__(self, tables: dict[str, Tensor]) -> None:
        super().__init__()
        self.embedding_bags = nn.ModuleDict(
            {name: nn.EmbeddingBag.from_pretrained(weight) for name, weight in tables.items()}
        )

    def embedding_bag_configs(self) -> list[object]:
        return list(self.embedding_bags)


class Bomb:
    """Creates a file when unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.trace,)


class Counted:
    """A source of one's own: only what the protocol asks for."""

    description = "a table of counts"

    def keys(self) -> Iterable[str]:
        return ["counts"]

    def shape(self, key: str) -> tuple[int, ...]:
        return (10, 1)

    def read(self, key: str, start: int, stop: int) -> Tensor:
        return torch.arange(float(start), float(stop))[:, None]


def saved(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def assert_holds_the_weight(source: WeightSource, key: str) -> None:
    assert list(source.keys()) == [key]
    assert source.shape(key) == (4, 3)
    assert torch.equal(source.read(key, 0, 4), WEIGHT)
    rows = source.read(key, 1, 3)
    assert torch.equal(rows, WEIGHT[1:3])
    assert not rows.requires_grad


def test_a_safetensors_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"ads": WEIGHT}, path)
    source = open_weights(path)
    assert source.description == str(path)
    assert_holds_the_weight(source, "ads")


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_state_dict_is_read(suffix: str, tmp_path: Path) -> None:
    path = saved(tmp_path / f"weights{suffix}", OrderedDict(ads=nn.Parameter(WEIGHT)))
    assert_holds_the_weight(open_weights(path), "ads")


@pytest.mark.parametrize("wrapper", ["state_dict", "model"])
def test_a_checkpoint_is_read_from_its_state_dict(wrapper: str, tmp_path: Path) -> None:
    content = {wrapper: {"ads": WEIGHT}, "epoch": 3, "optimizer": {"ads": WEIGHT * 2}}
    assert_holds_the_weight(open_weights(saved(tmp_path / "weights.pt", content)), "ads")


def test_what_is_no_tensor_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.pt", {"ads": WEIGHT, "step": 7, 3: WEIGHT})
    assert_holds_the_weight(open_weights(path), "ads")


def test_a_state_dict_is_mapped_not_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.pt", {"ads": WEIGHT})
    source = open_weights(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert_holds_the_weight(source, "ads")


def test_embedding_bags_by_name_are_read() -> None:
    bags = {"ads": nn.EmbeddingBag.from_pretrained(WEIGHT, freeze=False)}
    assert_holds_the_weight(weights_of(bags), "ads")


def test_embeddings_and_tensors_by_name_are_read() -> None:
    assert_holds_the_weight(weights_of({"ads": nn.Embedding.from_pretrained(WEIGHT)}), "ads")
    assert_holds_the_weight(weights_of({"ads": WEIGHT}), "ads")


def test_a_collection_of_torchrecs_shape_is_read() -> None:
    source = weights_of(Collection({"ads": WEIGHT}))
    assert source.description == "Collection"
    assert_holds_the_weight(source, "embedding_bags.ads.weight")
    assert find_table(source, "ads", None) == "embedding_bags.ads.weight"


def test_a_source_is_returned_as_it_is(tmp_path: Path) -> None:
    save_file({"ads": WEIGHT}, tmp_path / "weights.safetensors")
    for source in (
        TensorSource({"ads": WEIGHT}),
        SafetensorsSource(tmp_path / "weights.safetensors"),
        Counted(),
    ):
        assert weights_of(source) is source


@pytest.mark.parametrize("nothing", [3, None, {}, [WEIGHT], WEIGHT, "weights.pt"])
def test_other_objects_are_refused_by_type(nothing: object) -> None:
    with pytest.raises(SourceError, match=f"expected .* got a {type(nothing).__name__}"):
        weights_of(nothing)


@pytest.mark.parametrize("content", [{"ads": 3}, {"ads": nn.Linear(2, 2)}, {5: WEIGHT}])
def test_a_mapping_to_other_things_is_refused_by_name(content: dict[object, object]) -> None:
    with pytest.raises(SourceError, match="weights ('ads'|5): expected a tensor or an embedding"):
        weights_of(content)


@pytest.mark.parametrize(
    "key",
    [
        "ads",
        "ads.weight",
        "embedding_bags.ads.weight",
        "embeddings.ads.weight",
        "embedding.ads.weight",
        "model.sparse.embedding_bags.ads.weight",
        "module.ebc.embeddings.ads.weight",
    ],
)
def test_a_table_is_found_under_its_usual_names(key: str) -> None:
    others = {"bads": WEIGHT, "my_embedding_bags.ads.weight": WEIGHT, "embedding_bags.x.weight": 0}
    source = TensorSource(dict.fromkeys(others, WEIGHT) | {key: WEIGHT})
    assert find_table(source, "ads", None) == key


def test_the_plain_name_comes_before_longer_ones() -> None:
    source = TensorSource(dict.fromkeys(["a.embedding_bags.ads.weight", "ads.weight"], WEIGHT))
    assert find_table(source, "ads", None) == "ads.weight"


def test_a_given_key_is_taken_and_no_other() -> None:
    source = TensorSource({"ads": WEIGHT, "tables.0": WEIGHT})
    assert find_table(source, "ads", "tables.0") == "tables.0"
    with pytest.raises(SourceError, match="table 'ads': the state dict holds no weight 'tables.1'"):
        find_table(source, "ads", "tables.1")


def test_an_ambiguous_name_is_refused_with_the_candidates() -> None:
    keys = ["old.embedding_bags.ads.weight", "new.embedding_bags.ads.weight"]
    words = f"table 'ads': several weights .*: {keys[1]}, {keys[0]}; say which with .*'weights'"
    with pytest.raises(SourceError, match=words):
        find_table(TensorSource(dict.fromkeys(keys, WEIGHT)), "ads", None)


def test_a_missing_table_is_refused_with_what_there_is() -> None:
    with pytest.raises(SourceError, match="table 'ads': .* holds none of 'ads', .*; it holds x, y"):
        find_table(TensorSource({"y": WEIGHT, "x": WEIGHT}), "ads", None)


def test_another_shape_is_refused() -> None:
    source = TensorSource({"ads": WEIGHT})
    check_table(source, "ads", "ads", rows=4, dim=3)
    words = r"table 'ads': the spec says 5 rows of dim 3, but 'ads' .* is \[4, 3\]"
    with pytest.raises(SourceError, match=words):
        check_table(source, "ads", "ads", rows=5, dim=3)
    with pytest.raises(SourceError, match=r"is \[12\]"):
        check_table(TensorSource({"ads": WEIGHT.view(-1)}), "ads", "ads", rows=4, dim=3)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    source = TensorSource({"ads": WEIGHT.to(dtype)})
    with pytest.raises(SourceError, match=f"'ads' in the state dict is {dtype}, expected one of"):
        check_table(source, "ads", "ads", rows=4, dim=3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_float_is_accepted(dtype: torch.dtype) -> None:
    check_table(TensorSource({"ads": WEIGHT.to(dtype)}), "ads", "ads", rows=4, dim=3)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path / name}: no such weights file"):
        open_weights(tmp_path / name)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    path.write_bytes(b"")
    with pytest.raises(SourceError, match=f"{path}: expected a .safetensors, .pt, .pth or .bin"):
        open_weights(path)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(suffix: str, kept: float, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pt":
        saved(path, {"ads": torch.zeros(50, 50)})
    else:
        save_file({"ads": torch.zeros(50, 50)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(SourceError, match=f"{path}: not a"):
        open_weights(path)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_of_something_else_is_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_text("weights, honestly")
    with pytest.raises(SourceError, match=f"{path}: not a"):
        open_weights(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([WEIGHT], "expected a state dict, got a list"),
        (WEIGHT, "expected a state dict, got a Tensor"),
        ({"epoch": 3}, "holds no named tensors"),
        ({}, "holds no named tensors"),
    ],
)
def test_a_file_without_a_state_dict_is_refused(
    content: object, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=words):
        open_weights(saved(tmp_path / "weights.pt", content))


@pytest.mark.parametrize("nested", [False, True])
def test_a_malicious_checkpoint_is_refused_without_running_its_code(
    nested: bool, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    bomb = {"ads": WEIGHT, "hook": Bomb(trace)}
    path = saved(tmp_path / "weights.pt", {"state_dict": bomb} if nested else bomb)
    with pytest.raises(SourceError, match="not a state dict that can be read without running code"):
        open_weights(path)
    assert not trace.exists()


def test_a_bare_pickle_is_refused_without_running_its_code(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "weights.bin"
    path.write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(SourceError, match="without running code"):
        open_weights(path)
    assert not trace.exists()
