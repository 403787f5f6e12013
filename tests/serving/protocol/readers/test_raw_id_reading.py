from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from kernels.errors import LostMemoryError
from kernels.ids.id_index import IdIndex
from kernels.ids.index_writer import id_index_parts
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.readers.unknown_ids import UnknownIds
from sharded_infer.artifacts.mapped_id_maps import open_id_map
from sharded_infer.errors import RequestError
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from tests.support.requests_by_chance import MAX_BATCH, Arrays, check_same, inputs_by_chance
from tests.support.requests_by_chance import serialized as message_of


def table(name: str, unknown: Any, *features: str, rows: int = 24) -> TableSpec:
    return TableSpec(name, rows=rows, dim=1, features=features, id_map=IdMapSpec(unknown))


SPEC = ModelSpec(
    "raw",
    (
        table("strict", "error", "item", "clicked"),
        table("absent", "zero", "query", "clicked", "mixed"),
        table("one", SharedRows((23,)), "one"),
        table("segments", SharedRows((3, 0, 9), input_size=1000), "segment", "clicked"),
        table("mch", SharedRows((4, 5, 6, 7, 8), input_size=2**63 - 1), "mch"),
        table("modulo", HashedRows(24, 3), "hashed"),
        table("divided", HashedRows(24, 4, divided=True), "hashed", "mixed"),
        table("sized", HashedRows(24, 6, input_size=1001, divided=True, reserved=2), "hashed"),
        table("reserved", HashedRows(24, 2, input_size=2**62, reserved=1), "reserved"),
        TableSpec("plain", 24, 1, features=("any", "item"), id_map=IdMapSpec(hashed="identity")),
        TableSpec(
            *("murmur", 7, 1),
            features=("any", "query"),
            id_map=IdMapSpec(hashed="murmur_hash3_2x64", hash_seed=2**64 - 1),
        ),
        TableSpec(
            "xxh3", 2**40 + 1, 1, features=("any", "row"), id_map=IdMapSpec(hashed="xxh3_64")
        ),
        # Shard hosts map its ids.
        table("left", "error", "left", "item"),
        TableSpec("rows", rows=9, dim=1, features=("mixed", "row"), out_of_range="modulo"),
        TableSpec("padded", rows=9, dim=1, features=("row", "padded"), padding_idx=5),
    ),
    DenseSpec({"age": 1}),
)
EDGES = (0, -1, 1, 7, 999, 1000, 1001, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**32, -(2**32))
RAW = {name: [*range(-20, 20), *EDGES] for name in SPEC.sparse_inputs} | {
    "item": range(12),
    "clicked": range(12),
}
RAW["row"] = range(9)
del RAW["padded"]


def opened(left: tuple[str, ...] = ("left",)) -> dict[str, IdMap]:
    """Indexes of the ids 0 to 11, and of some others; not of the tables that are left out."""
    maps = {}
    for place, one in enumerate(SPEC.mapped_tables):
        if one.name in left:
            continue
        ids = np.array([*range(12), -3, 2**63 - 1, 5 * 10**9 + place], np.int64)
        rows = np.random.default_rng(place).permutation(one.rows)[: len(ids)].astype(np.int64)
        parts = id_index_parts([(ids, rows)], len(ids), one.rows)
        maps[one.name] = IdMap(one, IdIndex.open(b"".join(parts)))
    return maps


MAPS = opened()


class Readers:
    def __init__(self, maps: dict[str, IdMap], max_batch: int = MAX_BATCH) -> None:
        self.counts = UnknownIds(SPEC), UnknownIds(SPEC)
        self.native = NativeReader(
            SPEC, max_batch=max_batch, id_maps=maps, unknown_ids=self.counts[0]
        )
        self.portable = PortableReader(
            SPEC, max_batch=max_batch, id_maps=maps, unknown_ids=self.counts[1]
        )

    def check_agree(self, inputs: Arrays) -> Counter[str]:
        message = message_of(inputs)
        found = self.native.read_message(message)
        wanted = self.portable.read_message(message)
        assert found is not None
        check_same(found, wanted)
        np.testing.assert_array_equal(self.counts[0].cells, self.counts[1].cells)
        return Counter(dict(wanted.ids_unknown))


@pytest.fixture(scope="module")
def readers() -> Readers:
    return Readers(MAPS)


@settings(deadline=None, max_examples=50)
@given(inputs=inputs_by_chance(SPEC, RAW))
def test_raw_ids_are_mapped_as_the_portable_path_maps_them(
    readers: Readers, inputs: Arrays
) -> None:
    readers.check_agree(inputs)


def test_bags_of_thousands_of_ids_are_mapped_alike() -> None:
    generator = np.random.default_rng(3)
    seen: Counter[str] = Counter()
    readers = Readers(MAPS, max_batch=5000)
    for count in (1023, 1024, 1025, 5000):
        inputs: Arrays = {"age": np.zeros((1, 1), np.float32)}
        for name, pool in RAW.items():
            inputs[name] = generator.choice(np.array(pool, np.int64), count)
        seen += readers.check_agree(inputs)
    wanted = [seen[one.name] for one in SPEC.mapped_tables]
    assert [one.name for one in SPEC.mapped_tables if seen[one.name] < 1000] == ["strict", "left"]
    assert not seen["strict"] and not seen["left"]
    assert readers.counts[0].cells.tolist() == wanted


DENSE: Arrays = {"age": np.zeros((2, 1), np.float32)}


def test_an_unknown_id_that_is_refused_is_worded_by_the_portable_path() -> None:
    reader = InputReader(SPEC, max_batch=2, id_maps=MAPS)
    # Others of the request are unknown too: nothing of it is counted.
    message = message_of({**DENSE, "one": np.array([-9, -9]), "item": np.array([1, 77])})
    assert reader.native is not None and reader.native.read_message(message) is None
    with pytest.raises(RequestError, match="'item', sample 1: id 77 is not in the id map of table"):
        reader.read_message(message)
    assert not reader.unknown_ids.any()


def test_threads_count_every_unknown_id() -> None:
    reader = InputReader(SPEC, max_batch=2, id_maps=MAPS)
    message = message_of({**DENSE, "one": np.array([-9, -8])})

    def read(way: Any) -> None:
        for _ in range(500):
            way(message)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read, [reader.read_message, reader._portable.read_message] * 2))
    assert reader.unknown_ids.sum() == 4 * 500 * 2


def test_an_id_map_that_shrinks_is_an_error_of_the_portable_path(tmp_path: Path) -> None:
    one = SPEC.mapped_tables[1]
    generator = np.random.default_rng(0)
    ids = generator.integers(-(2**63), 2**63 - 1, 5000)
    path = tmp_path / "absent.index"
    rows = generator.integers(0, one.rows, 5000)
    path.write_bytes(b"".join(id_index_parts([(ids, rows)], len(ids), one.rows)))
    reader = InputReader(SPEC, max_batch=2, id_maps={**MAPS, "absent": open_id_map(path, one)})
    message = message_of({**DENSE, "query": ids.reshape(2, 2500)})
    assert reader.native is not None
    assert reader.native.read_message(message) is not None
    for size in (path.stat().st_size // 2, 4096, 0):
        with path.open("r+b") as file:
            file.truncate(size)
        assert reader.native.read_message(message) is None
        with pytest.raises(LostMemoryError, match=r"absent.index: has become shorter"):
            reader.read_message(message)
