"""Models whose requests have raw ids, with id maps of every kind; 0.1.0 had none."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sharded_infer import ChangedRows, ModelSpec, open_id_file, open_vocabulary, publish
from sharded_infer.client import hash_strings
from tests.compatibility.corpus import Arrays
from tests.compatibility.plain_models import SAMPLES, TOPOLOGIES, rows_of, spec_of
from tests.compatibility.towers import ExactTower

Ids = NDArray[np.int64]
WORDS = ("", "a", "größe", "68fd1e64", "80e26c9b")
# Each meaning of unknown ids, each hash of hashed ids, and strings.
RAW = """
name = "raw"
[dense]
inputs = { dense = 2 }
[tower]
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[[tables]]
name = "user"
rows = 30
dim = 4
id_map = { unknown = "error" }
[[tables]]
name = "item"
rows = 31
dim = 5
pooling = "mean"
id_map = { unknown = "zero" }
[[tables]]
name = "shop"
rows = 32
dim = 6
id_map = { unknown = { rows = [31] } }
[[tables]]
name = "ad"
rows = 33
dim = 7
id_map = { unknown = { rows = [3, 7, 32], input_size = 1000 } }
[[tables]]
name = "word"
rows = 5
dim = 8
id_map = { unknown = "zero", strings = "xxh3_64", seed = 7 }
[[tables]]
name = "identity"
rows = 34
dim = 3
id_map = { hashed = "identity" }
[[tables]]
name = "murmur"
rows = 35
dim = 4
id_map = { hashed = "murmur_hash3_2x64", hash_seed = 5 }
[[tables]]
name = "xxh3"
rows = 36
dim = 5
id_map = { hashed = "xxh3_64", strings = "murmur3_x64_128", seed = 9 }
"""
# Unknown ids read a row that a hash chooses; no new ids can come to such a table.
BUCKETS = """
name = "buckets"
[dense]
inputs = { dense = 2 }
[tower]
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[[tables]]
name = "item"
rows = 40
dim = 4
id_map.unknown = { rows = 40, buckets = 4, input_size = 100000, divided = true, reserved = 2 }
[[tables]]
name = "shop"
rows = 42
dim = 6
id_map.unknown = { rows = 42, buckets = 2 }
"""


def publish_raw(text: str, repository: Path, folder: Path, sign_key: Path) -> Arrays:
    """A signed version of `RAW` or `BUCKETS`; returns a request, with unknown ids."""
    spec = spec_of(text, folder)
    known = {table.name: _known_ids(table.name, table.rows) for table in spec.mapped_tables}
    sources = {}
    for table in spec.mapped_tables:
        if table.name == "word":
            (folder / "words.txt").write_text("".join(word + "\n" for word in WORDS))
            sources["word"] = open_vocabulary(folder / "words.txt", "xxh3_64", 7)
            continue
        path, ids = folder / f"{table.name}.npz", known[table.name]
        np.savez(path, id=ids, row=np.arange(len(ids))[::-1])
        sources[table.name] = open_id_file(path)
    request = _request(spec, known)
    publish(
        spec,
        rows_of(spec, seed=31),
        ExactTower(spec.embedding_width + sum(spec.dense.inputs.values()), 16, seed=32),
        repository,
        id_maps=sources,
        samples=request,
        topologies=TOPOLOGIES[:2],
        sign_keys=[sign_key],
    )
    return request


def changes_of_raw(request: Arrays) -> dict[str, ChangedRows]:
    """Changes of a known id, new ids and removed ones, by the request's raw ids."""
    generator = np.random.default_rng(33)
    known, unknown = np.unique(request["item"])[:4], np.unique(request["shop"])[-3:]
    dims = {"item": 5, "shop": 6}
    rows = {
        name: torch.from_numpy(generator.standard_normal((len(ids), dims[name]), np.float32))
        for name, ids in (("item", known), ("shop", unknown))
    }
    removed = np.unique(request["item"])[-2:]
    return {
        "item": ChangedRows(known, rows["item"], removed=removed),
        "shop": ChangedRows(unknown, rows["shop"]),
    }


def _known_ids(table: str, rows: int) -> Ids:
    """64-bit numbers, fewer than rows; of a vocabulary the hashes of its words."""
    if table == "word":
        return hash_strings(WORDS, "xxh3_64", 7)
    strange = (0, -1, 2**63 - 1, -(2**63))
    drawn = np.random.default_rng(rows).integers(-(2**63), 2**63 - 1, rows - 8)
    return np.array([*strange, *drawn], np.int64)


def _request(spec: ModelSpec, known: dict[str, Ids]) -> Arrays:
    """Bags of known and unknown ids; of a table that refuses unknown ones, known ids alone."""
    generator = np.random.default_rng(34)
    arrays: Arrays = {}
    for table in spec.tables:
        lengths = generator.integers(0, 5, SAMPLES)
        ids = generator.integers(-(2**63), 2**63 - 1, int(lengths.sum()))
        if table.name in known:
            chosen = generator.choice(known[table.name], len(ids))
            refuses = table.id_map is not None and table.id_map.unknown == "error"
            ids = np.where(refuses | (generator.random(len(ids)) < 0.7), chosen, ids)
        arrays[table.name], arrays[f"{table.name}.lengths"] = ids, lengths
    for name, width in spec.dense.inputs.items():
        arrays[name] = generator.standard_normal((SAMPLES, width), np.float32)
    return arrays
