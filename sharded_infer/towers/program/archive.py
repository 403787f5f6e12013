"""The archive of a tower: torch.export's PT2 format, reduced when written, untrusted when read.

`torch.export.load` unpickles sample inputs, evaluates shape expressions and executes guards, so
that a file can run any code. This reader takes only the graph, as JSON, and the weights, as raw
bytes.
"""

import io
import json
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch

from kernels.wording import counted
from sharded_infer.errors import TowerError
from sharded_infer.files.regular_file import open_regular
from sharded_infer.torch_message import torch_message
from sharded_infer.towers.program.arguments import parse_dtype, parse_layout
from sharded_infer.towers.program.graph import Weight, parse_graph
from sharded_infer.towers.program.json_element import Element
from sharded_infer.towers.program.names import recorded

_MODEL: Final = "models/model.json"
_SAMPLE_INPUTS: Final = "data/sample_inputs/model.pt"
_MAX_JSON_BYTES: Final = 64 * 2**20
_CHUNK_BYTES: Final = 2**20
# Earliest time in the zip format.
_ZIP_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_ENCRYPTED_FLAG: Final = 0x1


def write_program(program: torch.export.ExportedProgram, path: Path) -> None:
    """Stores a program; the same program gives the same bytes.

    Args:
        program: its parameters and buffers are plain dense tensors.
        path: `torch.export.load` can also read the file.

    Raises:
        TowerError: torch cannot serialize the program.
    """
    path.write_bytes(pack_program(program))


def read_program(path: Path, *, follow: bool = False) -> torch.fx.GraphModule:
    """Loads a stored program without running any code from the file.

    Args:
        path: a file that `write_program` or `torch.export.save` wrote.
        follow: whether the path may be a symbolic link; meant for paths given by a user.

    Returns:
        A module in eval mode. It takes the program's inputs by position, in the order of its
        signature, and returns a tuple of tensors. All its tensors are buffers.

    Raises:
        TowerError: the file is not a well-formed archive of allowed operators with raw,
            uncompressed, strided weights; names the file and the problem.
        OSError: as `open`.
    """
    with open_regular(path, follow=follow) as file:
        return read_packed(file, str(path))


def pack_program(program: torch.export.ExportedProgram) -> bytes:
    """The bytes that `write_program` writes; raises the same errors."""
    saved, packed = io.BytesIO(), io.BytesIO()
    try:
        torch.export.save(program, saved)
    except Exception as error:
        raise TowerError(f"torch cannot serialize the tower: {torch_message(error)}") from error
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(packed, "w") as target:
        for name in source.namelist():
            root, _, inner = name.partition("/")
            if inner == ".data/serialization_id":
                continue
            data = source.read(name)
            if inner == _SAMPLE_INPUTS:
                # An unused pickle. torch.export.load needs the entry, but accepts an empty one.
                data = b""
            elif inner == _MODEL:
                data = _without_sources(data)
            info = zipfile.ZipInfo(f"{root}/{inner}", _ZIP_EPOCH)
            info.create_system, info.external_attr = 3, 0o600 << 16
            target.writestr(info, data)
    return packed.getvalue()


def _without_sources(model: bytes) -> bytes:
    """Removes guards, stack traces and other traces of the publisher's code from the JSON."""
    program = json.loads(model)
    program["guards_code"] = []
    program["graph_module"]["metadata"] = recorded(program["graph_module"]["metadata"])
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {}
    return json.dumps(program, separators=(",", ":")).encode()


def read_packed(file: BinaryIO, name: str) -> torch.fx.GraphModule:
    """`read_program` from an open, seekable file; messages use `name`."""
    with _zip_errors(name):
        opened = zipfile.ZipFile(file)
    with opened:
        archive = _open(opened, file.seek(0, io.SEEK_END), name)
        graph = parse_graph(archive.document(_MODEL))
        return graph.build(_Weights.open(archive).load)


@contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, struct.error) as error:
        raise TowerError(f"{name}: not a readable zip archive: {error}") from error


@dataclass(frozen=True, slots=True)
class _Archive:
    """An open archive with checked entries; names are relative to its only root folder."""

    name: str
    zip: zipfile.ZipFile
    entries: dict[str, zipfile.ZipInfo]

    def entry(self, path: str) -> zipfile.ZipInfo:
        if path not in self.entries:
            raise TowerError(f"{self.name}: the archive has no entry {path!r}")
        return self.entries[path]

    def document(self, path: str) -> Element:
        """The JSON entry at `path`; raises TowerError if it is missing, too large or not JSON."""
        entry = self.entry(path)
        if entry.file_size > _MAX_JSON_BYTES:
            raise TowerError(
                f"{self.name}: {path} has {counted(entry.file_size, 'byte')}, "
                f"at most {_MAX_JSON_BYTES} are read"
            )
        return Element.parse(self.read(path), f"{self.name}: {path}")

    def read(self, path: str) -> bytes:
        """Bytes of an entry; the archive's directory bounds their number."""
        entry = self.entry(path)
        with _zip_errors(self.name):
            return self.zip.read(entry)

    def raw(self, path: str) -> torch.Tensor:
        """Bytes of an entry, uint8 `[bytes]`, read directly into a tensor."""
        entry = self.entry(path)
        storage = torch.empty(entry.file_size, dtype=torch.uint8)
        target = storage.numpy().data
        read = 0
        with _zip_errors(self.name), self.zip.open(entry) as source:
            while chunk := source.read(_CHUNK_BYTES):
                target[read : read + len(chunk)] = chunk
                read += len(chunk)
        if read != entry.file_size:
            raise TowerError(
                f"{self.name}: {path} ends after {read} of {counted(entry.file_size, 'byte')}"
            )
        return storage


def _open(opened: zipfile.ZipFile, archive_bytes: int, name: str) -> _Archive:
    """Checks the archive's directory before any entry is read."""
    infos = opened.infolist()
    repeated = [path for path, count in Counter(i.filename for i in infos).items() if count > 1]
    if repeated:
        # Readers differ in which entry they use, so one file could mean two different programs.
        raise TowerError(f"{name}: the archive has several entries {repeated[0]!r}")
    roots = {info.filename.partition("/")[0] for info in infos}
    if len(roots) != 1:
        raise TowerError(f"{name}: expected one root folder in the archive, got {len(roots)}")
    for info in infos:
        if info.flag_bits & _ENCRYPTED_FLAG:
            raise TowerError(f"{name}: {info.filename} is encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise TowerError(f"{name}: {info.filename} is compressed; entries must be stored")
    entry_bytes = sum(info.file_size for info in infos)
    if entry_bytes > archive_bytes:
        # Overlapping or oversized entries could exhaust memory when read.
        raise TowerError(
            f"{name}: the entries claim {counted(entry_bytes, 'byte')}, the "
            f"archive has {archive_bytes}"
        )
    archive = _Archive(name, opened, {i.filename.partition("/")[2]: i for i in infos})
    if archive.read("byteorder") != b"little":
        raise TowerError(f"{name}: the weights are not in little-endian byte order")
    return archive


@dataclass(frozen=True, slots=True)
class _Weights:
    """The archive's tensors; those that share a stored entry also share memory."""

    archive: _Archive
    weights: dict[str, Element]
    constants: dict[str, Element]
    storages: dict[str, torch.Tensor]

    @classmethod
    def open(cls, archive: _Archive) -> "_Weights":
        weights = archive.document("data/weights/model_weights_config.json")
        constants = archive.document("data/constants/model_constants_config.json")
        opened = cls(
            archive,
            dict(weights.field("config").members()),
            dict(constants.field("config").members()),
            {},
        )
        for payload in (*opened.weights.values(), *opened.constants.values()):
            if payload.field("use_pickle").boolean():
                raise TowerError(f"{payload.where}: stored as a pickle, which is never read")
        return opened

    def load(self, weight: Weight) -> torch.Tensor:
        """Reads one tensor; raises TowerError if it is missing, truncated or malformed."""
        known = self.constants if weight.is_constant else self.weights
        if weight.key not in known:
            kind = "constant" if weight.is_constant else "weight"
            raise TowerError(f"{self.archive.name}: the archive has no {kind} {weight.key!r}")
        payload = known[weight.key]
        folder = "data/constants" if weight.is_constant else "data/weights"
        path = f"{folder}/{payload.field('path_name').text()}"
        if path not in self.storages:
            self.storages[path] = self.archive.raw(path)
        return _strided(self.storages[path], payload.field("tensor_meta"))


def _strided(storage: torch.Tensor, meta: Element) -> torch.Tensor:
    """The tensor that `meta` describes in the bytes of `storage`, uint8 `[bytes]`."""
    dtype = parse_dtype(meta.field("dtype"))
    parse_layout(meta.field("layout"))
    sizes = [_plain_integer(size) for size in meta.field("sizes").elements()]
    strides = [_plain_integer(stride) for stride in meta.field("strides").elements()]
    offset = _plain_integer(meta.field("storage_offset"))
    if len(sizes) != len(strides):
        raise meta.refuse("as many strides as sizes")
    if storage.numel() % dtype.itemsize:
        raise TowerError(
            f"{meta.where}: {counted(storage.numel(), 'byte')} cannot hold whole {dtype} elements"
        )
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    needed = 0 if 0 in sizes else offset + last + 1
    available = storage.numel() // dtype.itemsize
    if needed > available:
        raise TowerError(
            f"{meta.where}: the tensor needs {counted(needed, 'element')}, its "
            f"entry holds {available}"
        )
    if dtype is torch.bool and bool((storage > 1).any()):
        raise TowerError(f"{meta.where}: a boolean is neither 0 nor 1")
    try:
        return torch.as_strided(storage.view(dtype), sizes, strides, offset)
    except RuntimeError as error:
        raise TowerError(f"{meta.where}: not a tensor: {torch_message(error)}") from error


def _plain_integer(value: Element) -> int:
    """A size as a plain number; weights have no symbolic shapes."""
    kind, held = value.union()
    if kind != "as_int":
        raise value.refuse("a plain integer")
    return held.count()
