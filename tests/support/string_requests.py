"""A small model whose ids are strings, and its requests."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings, unpacked_strings
from kernels.ids.id_index import IdIndex
from kernels.ids.index_writer import id_index_parts
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.wire_strings import packed_strings
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from sharded_infer.v1 import predictor_pb2

MAX_BATCH = 8
WORDS = (b"", b"a", "größe".encode(), b"\0\xff" * 40, b"68fd1e64", b"x" * 300)
_XXH3 = IdMapSpec("zero", strings="xxh3_64", seed=7)
_MURMUR3 = IdMapSpec(SharedRows((8, 2)), strings="murmur3_x64_128", seed=9)
_HASHED = IdMapSpec(strings="murmur3_x64_128", seed=9, hashed="xxh3_64", hash_seed=3)
SPEC = ModelSpec(
    "words",
    (
        TableSpec("word", rows=9, dim=1, id_map=_XXH3),
        TableSpec("token", rows=9, dim=1, id_map=_MURMUR3),
        TableSpec("deep", rows=9, dim=1, features=("word", "left"), id_map=_XXH3),
        # Shard hosts map its ids.
        TableSpec("elsewhere", rows=9, dim=1, features=("left",), id_map=_XXH3),
        # If tables hash differently, ids are numbers.
        TableSpec("other", rows=9, dim=1, features=("both",), id_map=_MURMUR3),
        TableSpec("plain", rows=9, dim=1, features=("both", "plain"), out_of_range="modulo"),
        TableSpec("hashed", rows=9, dim=1, features=("crossed", "token"), id_map=_HASHED),
    ),
    DenseSpec({"age": 1}),
)


class Sent(NamedTuple):
    datatype: str
    shape: Sequence[int]
    data: bytes


AGE = Sent("FP32", [1, 1], bytes(4))


def strings(words: Sequence[bytes], *shape: int) -> Sent:
    return Sent("BYTES", list(shape) or [len(words)], packed_strings(words))


def numbers(values: Sequence[int], *shape: int) -> Sent:
    return Sent("INT64", list(shape) or [len(values)], np.array(values, "<i8").tobytes())


def message_of(inputs: Mapping[str, Sent]) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=SPEC.name)
    for name, sent in inputs.items():
        request.inputs.add(name=name, datatype=sent.datatype, shape=sent.shape)
        request.raw_input_contents.append(sent.data)
    return bytes(request.SerializeToString())


def as_predict(inputs: Mapping[str, Sent]) -> bytes:
    """A request of the protocol's form in ours; what has one bag is the user's."""
    request = predictor_pb2.PredictRequest(model=SPEC.name)
    request.user.dense.add(name="age", values=[0.0])
    for name, sent in inputs.items():
        if name == "age" or "." in name:
            continue
        each = sent.shape[1] if len(sent.shape) == 2 else 1
        lengths = [each] * sent.shape[0]
        if f"{name}.lengths" in inputs:
            lengths = np.frombuffer(inputs[f"{name}.lengths"].data, "<i8").tolist()
        is_user = len(lengths) == 1
        feature = (request.user if is_user else request.candidates).sparse.add(name=name)
        if not is_user:
            feature.lengths.extend(lengths)
        if sent.datatype == "BYTES":
            joined, offsets = unpacked_strings(sent.data, sum(lengths))
            feature.strings = joined[: offsets[-1]].tobytes()
            feature.string_lengths.extend(np.diff(offsets).tolist())
        else:
            feature.long_ids.extend(np.frombuffer(sent.data, "<i8").tolist())
        if f"{name}.weights" in inputs:
            feature.weights.extend(np.frombuffer(inputs[f"{name}.weights"].data, "<f4").tolist())
    return bytes(request.SerializeToString())


def raw_id(table: TableSpec, word: bytes) -> int:
    said = table.id_map
    if said is None or said.strings is None:
        raise ValueError(table.name)
    hashed = hash_strings(StringHash(said.strings), *joined_strings([word]), said.seed)
    return int(hashed[0])


def opened() -> dict[str, IdMap]:
    """Maps of all words but the last, each to its position."""
    maps = {}
    for table in SPEC.mapped_tables:
        if table.name == "elsewhere":
            continue
        ids = np.array([raw_id(table, word) for word in WORDS[:-1]], np.int64)
        chunk = ids, np.arange(len(ids), dtype=np.int64)
        parts = id_index_parts([chunk], len(ids), table.rows)
        maps[table.name] = IdMap(table, IdIndex.open(b"".join(parts)))
    return maps


MAPS = opened()


def native_reader() -> NativeReader:
    return NativeReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS)


def portable_reader() -> PortableReader:
    return PortableReader(SPEC, max_batch=MAX_BATCH, id_maps=MAPS)
