"""A model with id maps, and the same model without, whose ids are rows."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer.client import hash_strings
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.model_spec import (
    DenseSpec,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    TowerSpec,
)

Ids = NDArray[np.int64]
Arrays = dict[str, NDArray[np.generic]]
# The index reserves none of the 64-bit ids.
STRANGE = (0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32), 12)
TABLES = (
    TableSpec("user", rows=60, dim=4, features=("user_id",), id_map=IdMapSpec("error")),
    TableSpec(
        "item",
        rows=40,
        dim=3,
        pooling="mean",
        features=("clicked", "bought"),
        id_map=IdMapSpec("zero"),
    ),
    TableSpec("shop", rows=20, dim=5, id_map=IdMapSpec(SharedRows((19,)))),
    TableSpec(
        "ad",
        rows=30,
        dim=2,
        features=("ad", "shop"),
        id_map=IdMapSpec(SharedRows((3, 7, 29), input_size=1000)),
    ),
    TableSpec("country", rows=7, dim=3, out_of_range="ignore"),
)
SPEC = ModelSpec(
    "raw",
    TABLES,
    dense=DenseSpec({"age": 1}),
    tower=TowerSpec(),
    quantization=QuantizationSpec("fp32"),
)
# On the last, tables are split by rows.
TOPOLOGIES = ("cpu:1", "cpu:2", "cpu:4x0.7KB")


class Sum(nn.Module):
    def forward(self, age: Tensor, embeddings: Tensor) -> Tensor:
        return embeddings.mean(dim=1) + age.squeeze(1)


class RawModel(NamedTuple):
    """Versions with id maps and with plain rows, and the rows of raw ids by table."""

    path: Path
    plain: Path
    maps: dict[str, dict[int, int]]

    def rows(self, table: TableSpec, raw: int) -> int | None:
        """Row of a raw id; None if it leaves its bag."""
        known = self.maps[table.name].get(raw)
        unknown = table.id_map.unknown if table.id_map is not None else None
        if known is not None or not isinstance(unknown, SharedRows):
            return known
        segments, unsigned = len(unknown.rows), raw % 2**64
        at = unsigned // -(-unknown.input_size // segments)
        return unknown.rows[at if at < segments else unsigned % segments]


def made_maps(seed: int = 0) -> dict[str, dict[int, int]]:
    """Raw ids anywhere among 64-bit numbers; in some tables not every row has one."""
    generator = np.random.default_rng(seed)
    maps = {}
    for table in SPEC.mapped_tables:
        count = table.rows - 5
        ids = [*STRANGE, *generator.integers(-(2**63), 2**63 - 1, count - len(STRANGE)).tolist()]
        rows = generator.permutation(table.rows)[:count].tolist()
        maps[table.name] = dict(zip(ids, rows, strict=True))
    return maps


def source_of(entries: dict[int, int], chunk: int = 7) -> IdMapSource:
    ids, rows = np.array([*entries], np.int64), np.array([*entries.values()], np.int64)

    def read() -> Iterator[tuple[Ids, Ids]]:
        for first in range(0, len(ids), chunk):
            yield ids[first : first + chunk], rows[first : first + chunk]

    return IdMapSource("a test's map", len(ids), read)


# For the models of `publish_words`: each word's row is its position.
WORDS = ("", "a", "größe", "68fd1e64")
WORD_SEED = 7


def publish_words(folder: Path, *names: str) -> Path:
    """Publish raw ids that are strings, for tables whose ids are `WORDS`, of rows 1 to 4.

    The ids of "plain" are rows, all of which are 0.
    """
    ids = hash_strings(WORDS, "xxh3_64", WORD_SEED)
    source = replace(
        source_of({raw: row for row, raw in enumerate(ids.tolist())}),
        strings="xxh3_64",
        seed=WORD_SEED,
    )
    words = [name for name in names if name != "plain"]
    tables = tuple(
        TableSpec(name, 4, 1, id_map=IdMapSpec("zero") if name in words else None) for name in names
    )
    rows = torch.arange(1.0, 5.0)[:, None]
    weights = {name: rows * float(name in words) for name in names}
    spec = replace(SPEC, name="words", tables=tables)
    return publish(spec, weights, Sum(), folder, id_maps=dict.fromkeys(words, source)).path


def publish_raw(folder: Path, topologies: tuple[str, ...] = TOPOLOGIES) -> RawModel:
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    maps = made_maps()
    sources = {name: source_of(entries) for name, entries in maps.items()}
    path = publish(
        SPEC, weights, Sum(), folder / "raw", topologies=topologies, id_maps=sources
    ).path
    # A feature of several tables has other rows in each: it is sent once for each of them.
    tables = []
    for table in TABLES:
        names = tuple(f"{name}_of_{table.name}" for name in table.features or (table.name,))
        tables.append(replace(table, features=names, id_map=None))
    plain = replace(SPEC, name="plain", tables=tuple(tables))
    plain_path = publish(plain, weights, Sum(), folder / "plain", topologies=topologies).path
    return RawModel(path, plain_path, maps)


def raw_request(
    model: RawModel,
    batch: int,
    seed: int,
    *,
    shared: tuple[str, ...] = (),
    weighted: tuple[str, ...] = (),
) -> tuple[Arrays, Arrays]:
    """A request with known and unknown raw ids (shared ones once), and the plain model's."""
    generator = np.random.default_rng(seed)
    raw: Arrays = {"age": generator.standard_normal((batch, 1), dtype=np.float32)}
    plain: Arrays = {"age": raw["age"]}
    for name in SPEC.sparse_inputs:
        owners = [feature.table for feature in SPEC.features if feature.name == name]
        lengths = generator.integers(0, 5, 1 if name in shared else batch)
        if owners[0].id_map is None:
            ids = generator.integers(-2, owners[0].rows + 2, lengths.sum()).tolist()
        else:
            known = [*model.maps[owners[0].name]]
            others = [] if owners[0].id_map.unknown == "error" else unknown_ids(generator)
            ids = generator.choice(np.array([*known, *others], np.int64), lengths.sum()).tolist()
        scales = generator.standard_normal(len(ids), dtype=np.float32)
        _put(raw, name, ids, lengths.tolist(), scales if name in weighted else None)
        for table in owners:
            rows = [i if table.id_map is None else model.rows(table, i) for i in ids]
            ends = np.cumsum(lengths)
            kept = [at for at, row in enumerate(rows) if row is not None]
            counts = np.bincount(np.searchsorted(ends, kept, "right"), minlength=len(lengths))
            _put(
                plain,
                f"{name}_of_{table.name}",
                [row for row in rows if row is not None],
                counts.tolist(),
                scales[kept] if name in weighted else None,
            )
    return raw, plain


def unknown_ids(generator: np.random.Generator) -> list[int]:
    return [*generator.integers(-(2**63), 2**63 - 1, 8).tolist(), 3, 340, 670, 999, 1001, -7]


def _put(
    arrays: Arrays,
    name: str,
    ids: list[int],
    lengths: list[int],
    scales: NDArray[np.float32] | None,
) -> None:
    arrays[name] = np.array(ids, np.int64)
    arrays[f"{name}.lengths"] = np.array(lengths, np.int64)
    if scales is not None:
        arrays[f"{name}.weights"] = scales
