import io
import multiprocessing
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

from quant.sources.checkpoint import open_weights
from quant.sources.distributed_checkpoint import DistributedCheckpointSource
from quant.sources.weight_source import SourceError
from tests.quant.sources.test_checkpoint import Bomb

# Saving without a process group is what is meant.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

WEIGHT = torch.arange(33.0).view(11, 3)
GRID = torch.arange(77.0).view(11, 7)


def saved(path: Path, state: dict[str, Any]) -> Path:
    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(path), no_dist=True)
    return path


def one_of_two_ranks(folder: Path, rank: int) -> None:
    """A process that saves sharded tensors, which come to be among several over gloo."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    store = f"file://{folder}.rendezvous"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    # Each rank has two of four rectangles, which meet in the row after the fifth or the eighth.
    split, part = (5, 8)[rank], (slice(0, 4), slice(4, 7))[rank]
    pieces = [
        sharded_tensor.Shard.from_tensor_and_offsets(
            GRID[rows, part].clone(), [rows.start, part.start], rank
        )
        for rows in (slice(0, split), slice(split, 11))
    ]
    tensors = {
        "by_rows": distribute_tensor(WEIGHT, mesh, [Shard(0)]),
        "by_columns": distribute_tensor(WEIGHT.bfloat16(), mesh, [Shard(1)]),
        "replicated": distribute_tensor(WEIGHT, mesh, [Replicate()]),
        "one_row": distribute_tensor(WEIGHT[:1], mesh, [Shard(0)]),
        "in_grid": sharded_tensor.ShardedTensor._init_from_local_shards(pieces, 11, 7),
    }
    checkpoint.save({"model": tensors, "step": 3}, checkpoint_id=folder)
    torch.distributed.barrier()
    # Some threads of gloo cannot be ended in order.
    os._exit(0)


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> DistributedCheckpointSource:
    path, context = tmp_path_factory.mktemp("saved") / "c", multiprocessing.get_context("spawn")
    ranks = [context.Process(target=one_of_two_ranks, args=(path, rank)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return DistributedCheckpointSource(path)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return saved(tmp_path / "checkpoint", {"ads": WEIGHT})


def metadata_edited(path: Path, edit: Callable[[Metadata], object]) -> None:
    metadata = FileSystemReader(path).read_metadata()
    edit(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def tensor_of(metadata: Metadata) -> TensorStorageMetadata:
    tensor = metadata.state_dict_metadata["ads"]
    assert isinstance(tensor, TensorStorageMetadata)
    return tensor


def item_of(metadata: Metadata) -> _StorageInfo:
    item: _StorageInfo = metadata.storage_data[MetadataIndex("ads", torch.Size([0, 0]))]
    return item


def archive_replaced(path: Path, edit: Callable[[dict[str, bytes]], object], **zipped: int) -> None:
    file = path / "__0_0.distcp"
    with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", **zipped) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    file.write_bytes(written.getvalue())
    metadata_edited(path, lambda m: setattr(item_of(m), "length", len(written.getvalue())))


def refused_at_open(path: Path, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        open_weights(path)


def refused_when_read(path: Path, words: str) -> None:
    source = open_weights(path)
    with pytest.raises(SourceError, match=words):
        source.read("ads", 0, 1)


def test_a_nested_state_is_read_under_dotted_names(tmp_path: Path) -> None:
    tables = {"ads": nn.Parameter(WEIGHT), "items": torch.ones(4, 2)}
    path = saved(tmp_path / "c", {"model": {"bags": tables}, "step": 3, "lr": [0.1]})
    source = DistributedCheckpointSource(path)
    assert source.description == str(path)
    assert sorted(source.keys()) == ["model.bags.ads", "model.bags.items"]
    assert source.shape("model.bags.ads") == (11, 3)
    rows = source.read("model.bags.ads", 2, 5)
    assert torch.equal(rows, WEIGHT[2:5]) and not rows.requires_grad


DTYPES = [
    *("bool", "uint8", "uint16", "int64", "float8_e4m3fn", "bfloat16"),
    *("float16", "float32", "float64", "complex64", "complex128"),
]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_is_read_as_it_is(name: str, tmp_path: Path) -> None:
    dtype = getattr(torch, name)
    weight = WEIGHT.to(dtype)
    rows = DistributedCheckpointSource(saved(tmp_path / "c", {"ads": weight})).read("ads", 1, 9)
    assert rows.dtype is dtype
    assert torch.equal(rows.view(torch.uint8), weight[1:9].clone().view(torch.uint8))


def test_other_layouts_in_memory_are_read_by_their_strides(tmp_path: Path) -> None:
    state = {
        "transposed": WEIGHT.t().contiguous().t(),
        "part": torch.arange(100.0).view(10, 10)[2:7, 3:6],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "cube": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        "vector": torch.arange(5.0),
        "scalar": torch.tensor(2.0),
        "nothing": torch.zeros(0, 3),
    }
    source = DistributedCheckpointSource(saved(tmp_path / "c", state))
    assert set(source.keys()) == set(state)
    for key, tensor in state.items():
        assert source.shape(key) == tuple(tensor.shape)
        if tensor.dim():
            rows = len(tensor)
            assert torch.equal(source.read(key, 0, rows), tensor)
            assert torch.equal(source.read(key, rows // 2, rows), tensor[rows // 2 :])


def test_a_table_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    path = saved(tmp_path / "c", {"ads": torch.ones(1_000_000, 32)})
    source = DistributedCheckpointSource(path)

    def anonymous_kilobytes() -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    source.read("ads", 0, 10)
    before = anonymous_kilobytes()
    for start in range(0, 1_000_000, 10_000):
        assert source.read("ads", start, start + 10_000)[-1, -1] == 1
        assert anonymous_kilobytes() - before < 20_000
    assert str(path) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("key", "weight"),
    [
        ("by_rows", WEIGHT),
        ("by_columns", WEIGHT.bfloat16()),
        ("replicated", WEIGHT),
        ("one_row", WEIGHT[:1]),
        ("in_grid", GRID),
    ],
)
def test_chunks_by_rows_and_columns_are_assembled(
    key: str, weight: Tensor, sharded: DistributedCheckpointSource
) -> None:
    key = f"model.{key}"
    # What is no tensor, the step, is left out.
    names = ("by_columns", "by_rows", "in_grid", "one_row", "replicated")
    assert sorted(sharded.keys()) == [f"model.{name}" for name in names]
    assert sharded.shape(key) == tuple(weight.shape)
    for start in range(len(weight) + 1):
        for stop in range(start, len(weight) + 1):
            rows = sharded.read(key, start, stop)
            assert rows.dtype == weight.dtype and torch.equal(rows, weight[start:stop])


def test_a_pickle_that_would_run_code_is_refused_by_its_name(whole: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = pickle.dumps(Bomb(trace))
    archive_replaced(whole, lambda members: members.update({"archive/data.pkl": bomb}))
    refused_when_read(whole, "__0_0.distcp: 'ads' at byte 0: names 'pathlib.Path.touch'")
    metadata_edited(whole, lambda m: setattr(m, "planner_data", Bomb(trace)))
    refused_at_open(whole, f"{whole}/.metadata: names 'pathlib.Path.touch'.*nothing of it was run")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("torch", "load"),
        ("torch", "Size.__init__"),
        ("torch.serialization", "os.system"),
        ("torch.distributed.checkpoint.metadata", "os.system"),
        ("torch.distributed.checkpoint.metadata", "Metadata.__class__"),
        ("torch.distributed.checkpoint.filesystem", "FileSystemReader"),
        ("collections", "OrderedDict.fromkeys"),
        ("pathlib", "PosixPath.touch"),
        ("torch.Size", "__init__"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 4])
def test_only_exact_names_are_known(module: str, name: str, protocol: int, whole: Path) -> None:
    if protocol == 0:
        code = f"c{module}\n{name}\n(tR.".encode()
    else:
        code = b"\x80\x04" + b"".join(
            b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name)
        )
        code += b"\x93)R."
    (whole / ".metadata").write_bytes(code)
    refused_at_open(whole, f"{whole}/.metadata: names '{module}.{name}'")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"\x80\x02\x82\x01.", "must not have EXT1 1"),
        (b"\x80\x02K\x01r\xff\xff\xff\xff.", "must not have LONG_BINPUT 4294967295"),
        (b"\x80\x02X\x01\x00\x00\x00aQ.", "refers to something outside the pickle"),
        (b"\x80\x02K\x01.", "expected metadata with 'state_dict_metadata'"),
        # What is built on a class, or on tuple itself, goes nowhere.
        (b"ctorch.distributed.checkpoint.metadata\nMetadata\n}b.", "not a readable pickle"),
        (b"ctorch\nSize\nN}X\x01\x00\x00\x00aK\x01s\x86b.", "not a readable pickle"),
        (b"", "not a readable pickle"),
        (b"metadata, honestly", "not a readable pickle"),
    ],
)
def test_pickles_that_are_no_metadata_are_refused(code: bytes, words: str, whole: Path) -> None:
    (whole / ".metadata").write_bytes(code)
    refused_at_open(whole, f"{whole}/.metadata: .*{words}")


# In the pickle: storage elements 33, offset 0, size (11, 3), strides (3, 1).
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"K\x21tq", b"K\x22tq", "expected a storage of 136 bytes, got 132"),
        (b"QK\x00", b"QK\x01", "from element 1 reaches beyond its storage of 132 bytes"),
        (b"QK\x00", b"QJ\xff\xff\xff\xff", "expected a tensor's offset, sizes, strides"),
        (b"QK\x00", b"Q\x89", "expected a tensor's offset, sizes, strides"),
        (b"K\x0bK\x03\x86", b"K\x0cK\x03\x86", r"\[12, 3\] .* reaches beyond its storage"),
        (b"K\x0bK\x03\x86", b"K\x0aK\x03\x86", r"says \[11, 3\] .* the file holds \[10, 3\]"),
        (b"K\x0bK\x03\x86", b"K\x0b\x85", "expected a tensor's offset, sizes, strides"),
        (b"K\x03K\x01\x86", b"K\x04K\x01\x86", r"strides \[4, 1\] .* reaches beyond its storage"),
        (b"K\x03K\x01\x86", b"J\xfd\xff\xff\xffK\x01\x86", "expected a tensor's offset"),
        (b"K\x03K\x01\x86", b"\x8a\x09" + b"\xff" * 8 + b"\x00K\x01\x86", "expected a tensor's"),
        (b"FloatStorage", b"IntStorage", "says .* torch.float32, the file holds .* torch.int32"),
        (b"FloatStorage", b"HalfStorage", "expected a storage of 66 bytes, got 132"),
        (b"FloatStorage", b"Storage", "names 'torch.Storage'"),
        (b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x001", "no item named 'archive/data/1'"),
        (b"_rebuild_tensor_v2", b"_rebuild_sparse_tensor", "names 'torch._utils._rebuild_sparse"),
    ],
)
def test_tensors_beyond_storage_are_refused(
    old: bytes, new: bytes, words: str, whole: Path
) -> None:
    def edit(members: dict[str, bytes]) -> None:
        assert old in members["archive/data.pkl"]
        members["archive/data.pkl"] = members["archive/data.pkl"].replace(old, new)

    archive_replaced(whole, edit)
    refused_when_read(whole, f"{whole}/__0_0.distcp: 'ads' at byte 0.*{words}")


@pytest.mark.parametrize(
    ("changed", "compression", "words"),
    [
        ({"data.pkl": pickle.dumps({"ads": 3})}, 0, "'ads' at byte 0: expected one dense tensor"),
        ({"byteorder": b"big"}, 0, "expected little-endian bytes, got b'big'"),
        ({}, zipfile.ZIP_DEFLATED, "to be stored as it is, not compressed"),
    ],
    ids=["another object", "the other byte order", "compressed"],
)
def test_other_archives_are_refused(
    changed: dict[str, bytes], compression: int, words: str, whole: Path
) -> None:
    members = {f"archive/{name}": content for name, content in changed.items()}
    archive_replaced(whole, lambda old: old.update(members), compression=compression)
    refused_when_read(whole, words)


def test_a_storage_said_to_be_elsewhere_is_refused(whole: Path) -> None:
    file = whole / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    # The directory's entry of data/0: 46 bytes, the last four of which say where it is.
    entry = content.rindex(b"archive/data/0") - 46
    content[entry + 42 : entry + 46] = (len(content) - 40).to_bytes(4, "little")
    file.write_bytes(content)
    refused_when_read(whole, "its storage of 132 bytes is not in the archive")


@pytest.mark.parametrize("name", ["../__0_0.distcp", "/etc/passwd", "..", "", "a\0b", "a/b"])
def test_a_file_out_of_the_directory_is_refused(name: str, whole: Path) -> None:
    shutil.copy(whole / "__0_0.distcp", whole.parent)
    metadata_edited(whole, lambda m: setattr(item_of(m), "relative_path", name))
    refused_at_open(whole, f"{whole}/.metadata: 'ads': expected a plain file name, got")


def chunk_added(metadata: Metadata, offsets: list[int], sizes: list[int]) -> None:
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    tensor_of(metadata).chunks.append(chunk)
    metadata.storage_data[MetadataIndex("ads", chunk.offsets)] = item_of(metadata)


def overlapping(metadata: Metadata) -> None:
    tensor_of(metadata).chunks.clear()
    chunk_added(metadata, [0, 0], [10, 3])
    chunk_added(metadata, [5, 1], [3, 1])


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: setattr(item_of(m), "offset", 1), "is truncated: expected an item at bytes 1"),
        (lambda m: setattr(item_of(m), "length", 2**62), "is truncated"),
        (lambda m: setattr(item_of(m), "length", 100), "needs 132 bytes, but .* has 100"),
        (lambda m: setattr(item_of(m), "offset", -1), "whole numbers, not negative"),
        (lambda m: setattr(item_of(m), "offset", 2**20_000), "whole numbers, not negative"),
        (lambda m: setattr(item_of(m), "offset", "0"), "whole numbers, not negative"),
        (lambda m: setattr(item_of(m), "relative_path", 3), "expected a file's name, got a int"),
        (lambda m: setattr(item_of(m), "relative_path", "x.distcp"), "no such file: .*x.distcp"),
        (lambda m: setattr(item_of(m), "transform_descriptors", ["zstd"]), "was compressed"),
        (lambda m: m.storage_data.clear(), r"no file is named for the chunk at \[0, 0\]"),
        (lambda m: setattr(m, "storage_data", None), "expected mappings of tensors"),
        (lambda m: setattr(tensor_of(m), "chunks", None), "expected a list of chunks"),
        (lambda m: setattr(tensor_of(m), "chunks", [3]), "expected chunk with 'offsets'"),
        (lambda m: setattr(tensor_of(m), "properties", 3), "expected a dtype"),
        (lambda m: setattr(tensor_of(m), "size", torch.Size([2**61, 0, 3])), "no file can hold"),
        (lambda m: setattr(tensor_of(m), "size", torch.Size([11])), "but a chunk of .* begins at"),
        (lambda m: setattr(tensor_of(m), "size", torch.Size([10, 3])), "but a chunk of .* begins"),
        (lambda m: setattr(tensor_of(m), "size", torch.Size([12, 3])), "36 elements .* got 33"),
        (lambda m: setattr(tensor_of(m), "chunks", []), "expected chunks of 33 elements .* got 0"),
        (lambda m: chunk_added(m, [3, 0], [2, 3]), "33 elements .* got 39"),
        (lambda m: tensor_of(m).chunks.append(tensor_of(m).chunks[0]), "got 66"),
        (overlapping, r"the chunks at \[0, 0\] and \[5, 1\] overlap"),
    ],
)
def test_metadata_that_contradicts_itself_or_the_files_is_refused(
    edit: Callable[[Metadata], object], words: str, whole: Path
) -> None:
    metadata_edited(whole, edit)
    refused_at_open(whole, f"{whole}/.metadata: 'ads': .*{words}|{whole}/.metadata: {words}")


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(kept: float, whole: Path) -> None:
    file = whole / "__0_0.distcp"
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    refused_at_open(whole, f"'ads': {file} is truncated")
    metadata = whole / ".metadata"
    content = metadata.read_bytes()
    metadata.write_bytes(content[: int(kept * len(content))])
    refused_at_open(whole, f"{metadata}: not a readable pickle")


def test_a_file_cut_off_after_it_was_opened_is_refused(whole: Path) -> None:
    source = DistributedCheckpointSource(whole)
    source.read("ads", 0, 1)
    file = whole / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:700])
    with pytest.raises(SourceError, match=f"{file}: changed since it was opened"):
        source.read("ads", 0, 1)
    file.unlink()
    with pytest.raises(SourceError, match=f"{file}: changed since it was opened"):
        source.read("ads", 0, 1)
