"""Writing of id maps and row places, and choice of raw ids for golden requests."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.index_writer import id_index_parts
from kernels.ids.row_places import write_places
from sharded_infer.artifacts.golden import generate_samples, id_ranges
from sharded_infer.artifacts.manifest import FileRecord, blocks_name
from sharded_infer.artifacts.mapped_id_maps import open_id_map, open_places
from sharded_infer.artifacts.table_file import write_hashes, write_parts
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.importing.id_maps.id_files import open_id_file
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import PlacedIds
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.id_steps import apply_steps
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

FOLDER = "id_maps"
PLACES_FOLDER = "row_places"
# Ids of an id map from which generated golden requests are drawn.
_CANDIDATES = 4096


@dataclass(frozen=True, slots=True)
class WrittenIdMaps:
    """The id maps of a version under construction, and the places of its ordered rows.

    Everything is by table: `files` and `place_files` are names in the version, `candidates` some
    known ids. `folder` holds the files; None: there are none.
    """

    spec: ModelSpec
    folder: Path | None = None
    files: dict[str, str] = field(default_factory=dict)
    records: dict[str, FileRecord] = field(default_factory=dict)
    maps: dict[str, IdMap] = field(default_factory=dict)
    candidates: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    place_files: dict[str, str] = field(default_factory=dict)
    places: dict[str, PlacedIds] = field(default_factory=dict)

    def mapped(self, model_input: ModelInput) -> ModelInput:
        """Samples with raw ids mapped to rows.

        Raises RequestError for an unknown or out-of-range id that the spec refuses.
        """
        if self.spec.ids_are_rows:
            return model_input
        return InputPolicy(self.spec, {**self.maps, **self.places}).apply(model_input)

    def move_to(self, staged: Path) -> None:
        """Move the files into a staged version."""
        if self.folder is None:
            return
        for name, files in ((FOLDER, self.files), (PLACES_FOLDER, self.place_files)):
            if files:
                (self.folder / name).rename(staged / name)

    def generate(self) -> ModelInput:
        """Golden requests with known ids, as sent; SpecError if a feature's tables share none."""
        made = generate_samples(self.spec)
        if not made.ids_checked:
            return made
        inputs = SparseInputs(self.spec)
        sent = inputs.from_features(made.groups[0])
        values, start = sent.values.copy(), 0
        for name, lengths in zip(inputs.names, sent.lengths, strict=True):
            stop = start + int(lengths.sum())
            known = self._known(name)
            if known is not None:
                values[start:stop] = known[values[start:stop] % len(known)]
            start = stop
        raw = JaggedBatch(sent.features, values, sent.lengths, sent.weights)
        return replace(made, groups=(inputs.to_features(raw),), ids_checked=False)

    def _known(self, feature: str) -> NDArray[np.int64] | None:
        """Ids as sent that every table of a feature takes; None if some table's ids are rows."""
        uses = [use for use in self.spec.table_features if use.name == feature]
        tables = [use.table for use in uses]
        mapped = [table for table in tables if table.name in self.maps]
        if mapped:
            ids = self.candidates[mapped[0].name]
        elif tables and all(table.id_map is not None for table in tables):
            ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, _CANDIDATES)
        elif any(use.id_steps for use in uses):
            first, last = id_ranges(self.spec)[feature] or (0, _CANDIDATES - 1)
            ids = np.random.default_rng(0).integers(first, last, _CANDIDATES, endpoint=True)
        else:
            return None
        for use in uses:
            id_map = self.maps.get(use.table.name)
            if id_map is not None:
                ids = ids[id_map.known(ids) >= 0]
            elif use.table.id_map is None:
                rows = apply_steps(use.id_steps, ids)
                ids = ids[(rows >= 0) & (rows < use.table.rows)]
        if not len(ids):
            raise SpecError(
                f"feature {feature!r}: found no id that all its tables know; pass samples of "
                "requests (calibration samples, or samples)"
            )
        return ids


def with_id_maps(spec: ModelSpec, sources: Mapping[str, IdMapSource]) -> ModelSpec:
    """The published spec: each id map with an index defines its unknown ids.

    Raises SpecError, naming the table, if a source is superfluous, missing, or inconsistent with
    the spec.
    """
    names = [table.name for table in spec.tables]
    for name in sources:
        if name not in names:
            raise SpecError(f"id map of {name!r}: no such table, only {', '.join(names)}")
    tables = tuple(
        _with_id_map(table, sources.get(table.name))
        if table.id_map is not None or table.name in sources
        else table
        for table in spec.tables
    )
    return replace(spec, tables=tables) if tables != spec.tables else spec


def id_map_sources(spec: ModelSpec, folder: Path) -> dict[str, IdMapSource]:
    """The ids of each id map with a file relative to `folder`; WeightsError if unreadable."""
    return {
        table.name: open_id_file(
            folder / table.id_map.file, strings=table.id_map.strings, seed=table.id_map.seed
        )
        for table in spec.mapped_tables
        if table.id_map is not None and table.id_map.file is not None
    }


def _with_id_map(table: TableSpec, source: IdMapSource | None) -> TableSpec:
    if table.id_map is not None and table.id_map.hashed is not None:
        if source is not None:
            raise SpecError(
                f"table {table.name!r}: its ids are hashed ({table.id_map.hashed}), but an id map "
                f"was given: {source.description}"
            )
        return table
    if source is None:
        raise SpecError(
            f"table {table.name!r}: has an id map without ids: expected its file (id_map.file), or "
            "publish(id_maps=...) in Python"
        )
    said = table.id_map or IdMapSpec()
    if said.partition is not None:
        raise SpecError(
            f"table {table.name!r}: id_map.partition: expected none: publishing says it"
        )
    if said.strings is None:
        said = replace(said, strings=source.strings, seed=source.seed)
    unknown = said.unknown if said.unknown is not None else source.unknown or "error"
    for what, own, given in (
        ("strings", said.strings, source.strings),
        ("seed", said.seed, source.seed),
    ):
        if source.strings is not None and own != given:
            raise SpecError(
                f"table {table.name!r}: id_map.{what} is {own}, {source.description} says {given}"
            )
    try:
        return replace(table, id_map=replace(said, unknown=unknown, file=None))
    except ValueError as error:
        raise SpecError(f"table {table.name!r}: {source.description}: {error}") from error


@contextmanager
def written_id_maps(
    repository: Repository,
    spec: ModelSpec,
    sources: Mapping[str, IdMapSource],
    orders: Mapping[str, NDArray[np.uint32]],
    progress: Progress = no_progress,
) -> Iterator[WrittenIdMaps]:
    """Write id maps and row places to a temporary folder.

    `spec` is that of `with_id_maps`; `sources` are read once, in chunks; `orders` of ordered tables
    give the id whose row stands in each place. `progress` is called with the ids written. Raises
    WeightsError, naming the table, for an unreadable source or a repeated id, StorageError if the
    disk is full or unwritable.
    """
    tables = spec.mapped_tables
    if not tables and not orders:
        yield WrittenIdMaps(spec)
        return
    with repository.staging(spec.name) as folder:
        written = WrittenIdMaps(spec, folder)
        with storage_errors(folder):
            (folder / FOLDER).mkdir()
            (folder / PLACES_FOLDER).mkdir()
            for table in spec.ordered_tables:
                _write_places(written, table, orders[table.name], folder)
            for done, table in enumerate(tables):
                progress("writing id maps", done, len(tables))
                _write(written, table, sources[table.name], folder)
            progress("writing id maps", len(tables), len(tables))
        yield written


def write_index(
    folder: Path, name: str, table: TableSpec, parts: Iterable[memoryview]
) -> dict[str, FileRecord]:
    """Write the index of an id map under a name in the version; return its files' records.

    Hosts fetch the blocks of their own ids of a partitioned table, so it has block hashes.
    """
    written = write_parts(folder / name, parts)
    records = {name: written.record}
    if table.id_map is not None and table.id_map.partition is not None:
        records[blocks_name(name)] = write_hashes(folder / name, written.hashes)
    return records


def _write_places(
    written: WrittenIdMaps, table: TableSpec, order: NDArray[np.uint32], folder: Path
) -> None:
    name = f"{PLACES_FOLDER}/{table.name}.places"
    written.records[name] = write_parts(folder / name, [write_places(order).data]).record
    written.place_files[table.name] = name
    written.places[table.name] = open_places(folder / name, table)


def _write(written: WrittenIdMaps, table: TableSpec, source: IdMapSource, folder: Path) -> None:
    name = f"{FOLDER}/{table.name}.index"
    path, first = folder / name, np.empty(0, np.int64)

    def chunks() -> Iterator[Chunk]:
        nonlocal first
        for ids, rows in source.chunks(table.rows):
            if len(first) < _CANDIDATES:
                first = np.concatenate([first, ids[: _CANDIDATES - len(first)]])
            yield ids, rows

    try:
        parts = id_index_parts(chunks(), source.count, table.rows, folder=folder)
        written.records.update(write_index(folder, name, table, parts))
    except WeightsError:
        raise
    except InputError as error:
        raise WeightsError(f"table {table.name!r}: {source.description}: {error}") from error
    written.files[table.name] = name
    written.maps[table.name] = open_id_map(path, table)
    written.candidates[table.name] = first
