"""A model with id maps of every kind, published with a plan of several hosts."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kernels.ids.id_hash import StringHash, hash_strings, joined_strings
from kernels.row_format import RowFormat
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.planning.plan import Plan, StoredTable, dump_plan
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.id_map_spec import HashedRows, IdMapSpec
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, QuantizationSpec, TableSpec
from tests.sharded_infer.lookups.test_random_plans import cuts, random_plan
from tests.support import raw_ids
from tests.support.manifest_file import edit_manifest
from tests.support.raw_ids import STRANGE, Arrays, Ids, Sum, source_of, unknown_ids

HASHED = HashedRows(rows=32, buckets=4, divided=True)


def sized(
    name: str, rows: int, dim: int, row_format: RowFormat | None = None, **changes: Any
) -> TableSpec:
    """A table of `raw_ids` in another size."""
    [table] = (table for table in raw_ids.TABLES if table.name == name)
    return replace(table, rows=rows, dim=dim, format=row_format, **changes)


TABLES = (
    sized("user", 240, 16, RowFormat.INT8, id_map=IdMapSpec("error", strings="xxh3_64", seed=5)),
    sized("item", 160, 8, RowFormat.BF16),
    sized("shop", 200, 4),
    sized("ad", 120, 32, RowFormat.INT4),
    TableSpec(
        *("page", HASHED.rows, 20),
        pooling="mean",
        format=RowFormat.INT8,
        id_map=IdMapSpec(HASHED),
    ),
    sized("country", 7, 4),
)
SPEC = ModelSpec("raw", TABLES, dense=DenseSpec({"age": 1}), quantization=QuantizationSpec("fp32"))
USERS = [f"user {number}".encode() for number in range(235)]


def entries_of(table: TableSpec) -> dict[int, int]:
    """Raw ids of a table and their rows; of users the hashes of `USERS`."""
    generator = np.random.default_rng(table.rows)
    if table.name == "user":
        ids = hash_strings(StringHash.XXH3_64, *joined_strings(USERS), seed=5).tolist()
    else:
        drawn = generator.integers(-(2**63), 2**63 - 1, table.rows - 5 - len(STRANGE))
        ids = [*STRANGE, *drawn.tolist()]
    return dict(zip(ids, generator.permutation(table.rows)[: len(ids)].tolist(), strict=True))


MAPS = {table.name: entries_of(table) for table in SPEC.mapped_tables}


def publish_raw_cluster(
    repository: Path,
    hosts: int,
    kinds: Sequence[str],
    *,
    spec: ModelSpec = SPEC,
    tower: nn.Module | None = None,
    seed: int = 0,
) -> Path:
    """Publish a version of the same tables with a plan of `random_plan`; return its folder."""
    topologies, sources = (f"cpu:{2 * hosts}",), raw_sources()
    weights, tower = trained_weights(), tower or Sum()
    path = publish(spec, weights, tower, repository, topologies=topologies, id_maps=sources).path
    draw_plan(path, hosts, seed, kinds=kinds)
    return path


def draw_plan(version: Path, hosts: int, seed: int = 0, **options: Any) -> None:
    manifest = open_artifact(version).manifest
    [name] = manifest.plans
    generator, tables = np.random.default_rng([hosts, seed]), manifest.stored_tables()
    replace_plan(version, random_plan(generator, hosts, tables=tables, name=name, **options))


def publish_raw_parts(repository: Path, hosts: int, **more: Any) -> Path:
    """Publish a version whose tables are cut by rows, over random hosts; return its folder."""
    topology = narrow_topology(repository.parent, hosts)
    options = {"id_maps": raw_sources(), "topologies": (topology,), **more}
    path = publish(SPEC, trained_weights(), Sum(), repository, **options).path
    tables = {table.name: table for table in open_artifact(path).manifest.model_spec().tables}

    def cut(table: StoredTable, generator: np.random.Generator) -> list[int]:
        id_map = tables[table.name].id_map
        partition = None if id_map is None else id_map.partition
        if partition is None:
            return cuts(generator, table.rows, 1)
        inner = generator.choice(partition.first_rows[1:], 3)
        return sorted({0, table.rows, *inner.tolist()})

    draw_plan(path, hosts, kinds=("rows", "grid"), cut_rows=cut)
    return path


def narrow_topology(folder: Path, hosts: int) -> str:
    """A file of hosts with so little memory that all tables are cut by rows."""
    ranks = (
        f'[[devices]]\ncard = "cpu"\ncount = {-(-8 // hosts)}\nhost = {host}\nmemory = "2KB"\n'
        for host in range(hosts)
    )
    file = folder / f"narrow{hosts}.toml"
    file.write_text("".join(ranks))
    return str(file)


def raw_sources() -> dict[str, IdMapSource]:
    return {name: source_of(entries) for name, entries in MAPS.items()}


def trained_weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}


def replace_plan(version: Path, plan: Plan) -> None:
    [file] = open_artifact(version).manifest.plans.values()
    text = dump_plan(plan)
    (version / file).write_bytes(text)
    record = {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}

    def edit(document: dict[str, Any]) -> None:
        document["files"][file] = record

    edit_manifest(version, edit)


def raw_inputs(
    batch: int, seed: int, *, weighted: bool = False, shared: Sequence[str] = ()
) -> Arrays:
    """A request with known and unknown raw ids; users are known, shared features have one bag."""
    generator = np.random.default_rng(seed)
    arrays: Arrays = {"age": generator.standard_normal((batch, 1), dtype=np.float32)}
    for name in SPEC.sparse_inputs:
        table = next(feature.table for feature in SPEC.features if feature.name == name)
        lengths = generator.integers(0, 6, 1 if name in shared else batch)
        arrays[name] = _ids(generator, table, int(lengths.sum()))
        arrays[f"{name}.lengths"] = lengths.astype(np.int64)
        if weighted:
            arrays[f"{name}.weights"] = generator.standard_normal(lengths.sum(), dtype=np.float32)
    return arrays


def _ids(generator: np.random.Generator, table: TableSpec, count: int) -> Ids:
    if table.id_map is None:
        return generator.integers(-2, table.rows + 2, count)
    known = [*MAPS[table.name]]
    # A few repeat often, so that rows have fewer bytes than sums.
    some = [*known[:3] * 20, *known]
    others = [] if table.id_map.unknown == "error" else unknown_ids(generator)
    return generator.choice(np.array([*some, *others], np.int64), count)
