import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from kernels.row_format import RowFormat
from quant.sources.checkpoint import open_weights, weights_of
from quant.sources.table_weight import find_weight
from quant.sources.weight_source import SourceError, TensorSource, WeightSource

WEIGHT = torch.arange(12.0).view(4, 3)
OPTIMIZER = {"state": {0: {"exp_avg": WEIGHT}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


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
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., None], tuple[Path]]:
        return Path.touch, (self.trace,)


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


@pytest.mark.parametrize(
    ("weights", "key"),
    [
        ({"ads": nn.EmbeddingBag.from_pretrained(WEIGHT, freeze=False)}, "ads"),
        ({"ads": nn.Embedding.from_pretrained(WEIGHT)}, "ads"),
        ({"ads": WEIGHT}, "ads"),
        ({"ads": WEIGHT.numpy()}, "ads"),
        (Collection({"ads": WEIGHT}), "embedding_bags.ads.weight"),
    ],
)
def test_weights_in_memory_are_read(weights: object, key: str) -> None:
    assert_holds_the_weight(weights_of(weights), key)


def test_a_users_own_source_is_returned_as_it_is() -> None:
    source = TensorSource({"ads": WEIGHT})
    assert weights_of(source) is source


def test_a_state_dict_is_mapped_not_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path / "weights.pt", {"ads": WEIGHT})
    source = open_weights(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert_holds_the_weight(source, "ads")


def test_modules_and_mappings_in_a_mapping_are_read_under_dotted_names() -> None:
    source = weights_of(
        {
            "sparse": {"user": Collection({"ads": WEIGHT}), "items": WEIGHT.numpy()},
            "tower": nn.Linear(3, 1, bias=False),
            "ads": nn.Embedding.from_pretrained(WEIGHT),
        }
    )
    assert list(source.keys()) == [
        "sparse.user.embedding_bags.ads.weight",
        "sparse.items",
        "tower.weight",
        "ads",
    ]
    for key in ("sparse.user.embedding_bags.ads.weight", "sparse.items", "ads"):
        assert torch.equal(source.read(key, 1, 3), WEIGHT[1:3])


# torch deprecates ShardedTensor piece by piece, while TorchRec still returns it.
@pytest.mark.filterwarnings("ignore:.*[Ss]harded.?[Tt]ensor.*")
def test_a_distributed_tensor_is_read_where_whole_and_refused_where_not(tmp_path: Path) -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharded_tensor import ShardedTensor
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        shards = [
            sharded_tensor.Shard.from_tensor_and_offsets(WEIGHT.clone(), [start, 0], 0)
            for start in (0, 4)
        ]
        for whole in (
            DTensor.from_local(WEIGHT, mesh, [Shard(0)]),
            DTensor.from_local(WEIGHT, mesh, [Replicate()]),
            ShardedTensor._init_from_local_shards(shards[:1], 4, 3),
        ):
            assert_holds_the_weight(weights_of({"ads": whole}), "ads")
        part = DTensor.from_local(
            WEIGHT, mesh, [Shard(0)], shape=torch.Size([8, 3]), stride=(3, 1), run_check=False
        )
        words = (
            r"weights 'ads': a DTensor \[8, 3\], of which this process holds \[4, 3\]: save it "
            "with torch.distributed.checkpoint"
        )
        with pytest.raises(SourceError, match=words):
            weights_of({"ads": part})
        part = ShardedTensor._init_from_local_shards(shards, 8, 3)
        words = r"ads': a ShardedTensor \[8, 3\], of which .* holds \[4, 3\] and \[4, 3\]: save it"
        with pytest.raises(SourceError, match=words):
            weights_of({"model": {"ads": part}})
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("nothing", [3, None, {}, [WEIGHT], WEIGHT, "weights.pt"])
def test_other_objects_are_refused_by_type(nothing: object) -> None:
    with pytest.raises(SourceError, match=f"expected .* got a {type(nothing).__name__}"):
        weights_of(nothing)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"ads": 3}, "weights 'ads': expected a tensor, an array of numbers or .*, got a int"),
        ({"ads": {"x": [WEIGHT]}}, "weights 'ads.x': expected a tensor, .*, got a list"),
        ({"ads": np.array(["a"])}, "weights 'ads': expected a tensor, .*, got a array of <U1"),
        ({5: WEIGHT}, "weights '5': expected names, got a int"),
        (Collection({"ads": WEIGHT.to("meta")}), "'embedding_bags.ads.weight': has a shape but no"),
    ],
)
def test_a_mapping_to_other_things_is_refused_by_name(content: object, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        weights_of(content)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "a directory of nothing; expected a .safetensors"),
        (["b.txt", "a.pt"], "a directory of a.pt, b.txt; expected a .safetensors"),
        ([f"{n}.pt" for n in range(9)], "a directory of 0.pt, .*, 7.pt, ...; expected"),
        (
            ["a.safetensors.index.json", "b.safetensors.index.json", "c.npy"],
            "several indexes: a.safetensors.index.json, b.safetensors.index.json; give one of them",
        ),
    ],
)
def test_other_folders_are_refused_by_content(names: list[str], words: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=f"{tmp_path}: .*{words}"):
        open_weights(tmp_path)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.onnx"
    path.write_bytes(b"")
    with pytest.raises(
        SourceError, match=f"{path}: expected a .safetensors, .pt, .pth, .bin, .npy or"
    ):
        open_weights(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([WEIGHT], "expected a state dict, got a list"),
        (WEIGHT, "expected a state dict, got a Tensor"),
        ({"epoch": 3}, "holds no named tensors, only 'epoch'"),
        ({}, "an empty state dict"),
        (
            {"net": {"ads": WEIGHT}, "more": {"ema": {"ads": WEIGHT}}, "step": 1},
            "holds several state dicts: 'net', 'more.ema'; save one",
        ),
        *(
            (
                {first: {"ads": WEIGHT}, "optimizer": OPTIMIZER, second: {"ads": WEIGHT}},
                f"holds several state dicts: '{first}', '{second}'; save one",
            )
            for first, second in (
                ("model", "ema"),
                ("ema_state_dict", "state_dict"),
                ("model", "best_model"),
            )
        ),
        (
            {"b.weight": WEIGHT, "model": {"ads": WEIGHT}},
            "holds several state dicts: 'b.weight', ..., 'model'; save one",
        ),
        ({"optimizer": OPTIMIZER}, "holds no named tensors, only 'optimizer'"),
        (nn.Linear(2, 2), "it holds a torch.nn.modules.linear.Linear; save the model's state_dict"),
    ],
)
def test_a_file_of_no_state_dict_is_refused(content: object, words: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=words):
        open_weights(saved(tmp_path / "weights.pt", content))


def test_the_only_state_dict_beside_an_optimizers_is_taken_whatever_its_key(tmp_path: Path) -> None:
    for key in ("model_state_dict", "net"):
        for other in (
            {"optimizer_state_dict": OPTIMIZER},
            {"adam": {"ads.exp_avg": WEIGHT}, "optim": {"exp_avg": {"ads": WEIGHT}}},
            {"seed": WEIGHT[0], "metrics": {"auc": WEIGHT[0, 0]}, "scheduler": {"x": WEIGHT[0]}},
        ):
            content = {"epoch": 3, key: {"ads": WEIGHT}, **other}
            assert list(open_weights(saved(tmp_path / "weights.pt", content)).keys()) == ["ads"]


@pytest.mark.parametrize("suffix", ["pt", "bin", "safetensors", "npy", "npz"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"hello\n", "a text file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "a pointer of Git LFS, .* git lfs pull",
        ),
        (gzip.compress(b"x", mtime=0), "a gzip file: decompress it"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "an HDF5 file"),
        (pickle.dumps({"ads": 3}), "a plain pickle: save a state dict with torch.save"),
    ],
)
def test_files_of_another_format_are_called_what_they_are(
    suffix: str, content: bytes, words: str, tmp_path: Path
) -> None:
    path = tmp_path / f"weights.{suffix}"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=f"{path}: not a [^:]*: {words}"):
        open_weights(path)


def test_torchs_files_of_other_kinds_are_called_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(save_safetensors({"ads": WEIGHT}))
    with pytest.raises(SourceError, match="not a state dict: a safetensors file"):
        open_weights(path)
    torch.save({"ads": WEIGHT}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(SourceError, match="format of torch before 1.6"):
        open_weights(path)
    with pytest.warns(DeprecationWarning, match="torch.jit.trace"):
        torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save(path)
    warns = pytest.warns(UserWarning, match="TorchScript archive")
    with warns, pytest.raises(SourceError, match="a TorchScript program"):
        open_weights(path)


def test_a_malicious_checkpoint_is_refused_without_running_its_code(tmp_path: Path) -> None:
    trace, path = tmp_path / "trace", tmp_path / "weights.pt"
    state = {"ads": WEIGHT, "hook": Bomb(trace)}
    for content in (state, {"state_dict": state}, None):
        saved(path, content)
        if content is None:
            path.write_bytes(pickle.dumps(Bomb(trace)))
        with pytest.raises(
            SourceError, match="not a state dict.*(without running code|plain pickle)"
        ):
            open_weights(path)
        assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "stored"), [("UInt4Tensor", RowFormat.INT4), ("UInt2Tensor", RowFormat.INT2)]
)
def test_torchrecs_packed_rows_are_read(name: str, stored: RowFormat, tmp_path: Path) -> None:
    types = pytest.importorskip("torchrec.tensor_types", reason="TorchRec is not installed")
    rows = torch.arange(48, dtype=torch.uint8).reshape(3, 16)
    packed = getattr(types, name)(rows)
    path = saved(tmp_path / "weights.pt", {"ads.weight": packed})
    for source in (open_weights(path), weights_of({"ads.weight": packed})):
        assert source.shape("ads.weight") == (3, 16)
        assert torch.equal(source.read("ads.weight", 1, 3), rows[1:])
        # Of such a width rows can be of several formats: these say which.
        found = find_weight(source, "ads", None, rows=3, dim=8)
        assert found.stored is stored
        with pytest.raises(SourceError, match="not int8 as the spec says"):
            find_weight(source, "ads", None, rows=3, dim=8, row_format=RowFormat.INT8)
    packed.elem = "nothing"
    saved(path, {"ads.weight": packed})
    with pytest.raises(SourceError, match=r"'ads.weight'.*packed rows"):
        open_weights(path)
