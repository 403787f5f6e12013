"""Samples of unpublished models, with raw ids mapped to rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.ids.id_index import IdIndex
from kernels.ids.index_writer import id_index_parts
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import Chunk, IdMapSource
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.publishing.written_id_maps import with_id_maps
from sharded_infer.samples.request import model_input_of
from sharded_infer.specs.id_map_spec import MOST_MAPPED_ROWS
from sharded_infer.specs.model_spec import ModelSpec, TableSpec


def mapped_samples(
    spec: ModelSpec,
    samples: object,
    id_maps: Mapping[str, IdMapSource],
    *,
    leave_out: bool = False,
) -> ModelInput:
    """Read samples and map their raw ids to rows, as the published version will.

    Each id map is read once; only ids of the samples are kept.

    Args:
        samples: in any of the forms of `columns_of`, or a `ModelInput` of one jagged batch.
        id_maps: by table, as `publish` takes them.
        leave_out: drop ids that the model refuses from their bags.

    Returns:
        One jagged batch, whose ids are rows.

    Raises:
        SpecError, WeightsError: spec and id maps are inconsistent, or one is unreadable.
        RequestError: the samples do not fit the model, or have an id that it refuses.
    """
    spec = with_id_maps(spec, id_maps)
    found = model_input_of(spec, samples)
    if leave_out:
        spec = replace(spec, tables=tuple(_lenient(table) for table in spec.tables))
    maps = {
        table.name: _sampled(table, id_maps[table.name], _ids_of(spec, table.name, found))
        for table in spec.mapped_tables
        if table.name in id_maps
    }
    return InputPolicy(spec, maps).apply(found)


def with_frequencies(
    spec: ModelSpec, samples: object, id_maps: Mapping[str, IdMapSource]
) -> dict[str, IdMapSource]:
    """Add the samples' frequencies to id maps that have none.

    Arguments and errors are those of `mapped_samples`.
    """
    read = _rows_read(spec, samples, id_maps, id_maps)
    return {
        name: source
        if source.frequencies is not None
        else replace(source, frequencies=_Sampled(read[name]))
        for name, source in id_maps.items()
    }


def sampled_frequencies(
    spec: ModelSpec, samples: object, id_maps: Mapping[str, IdMapSource] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Use counts, in samples, of rows of tables without id maps: int64 `[rows]`, by table.

    Arguments and errors are those of `mapped_samples`.
    """
    tables = {t.name: t for t in spec.tables if t.id_map is None and t.rows <= MOST_MAPPED_ROWS}
    read = _rows_read(spec, samples, id_maps or {}, tables)
    return {name: np.bincount(rows, minlength=tables[name].rows) for name, rows in read.items()}


def _rows_read(
    spec: ModelSpec, samples: object, id_maps: Mapping[str, IdMapSource], tables: Iterable[str]
) -> dict[str, NDArray[np.int64]]:
    mapped = mapped_samples(spec, samples, id_maps, leave_out=True)
    read = {name: [np.empty(0, np.int64)] for name in tables}
    for group in mapped.groups:
        ends = np.cumsum(group.lengths.sum(axis=1)).tolist()
        for number, start, end in zip(group.features, [0, *ends], ends, strict=False):
            if (name := spec.input_features[number].table.name) in read:
                rows = group.values[start:end]
                # In sequences -1 replaces a dropped id.
                read[name].append(rows[rows >= 0])
    return {name: np.concatenate(of_table) for name, of_table in read.items()}


def _lenient(table: TableSpec) -> TableSpec:
    if table.id_map is None:
        refuses = table.out_of_range == "error"
        return replace(table, out_of_range="ignore") if refuses else table
    if table.id_map.unknown != "error":
        return table
    return replace(table, id_map=replace(table.id_map, unknown="zero"))


def _ids_of(spec: ModelSpec, table: str, samples: ModelInput) -> NDArray[np.int64]:
    found = [np.empty(0, np.int64)]
    for group in samples.groups:
        ends = np.cumsum(group.lengths.sum(axis=1)).tolist()
        for number, start, end in zip(group.features, [0, *ends], ends, strict=False):
            if spec.input_features[number].table.name == table:
                found.append(group.values[start:end])
    return np.unique(np.concatenate(found))


def _sampled(table: TableSpec, source: IdMapSource, wanted: NDArray[np.int64]) -> IdMap:
    ids, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for some, their_rows in source.chunks(table.rows):
        asked = np.isin(some, wanted)
        ids.append(some[asked])
        rows.append(their_rows[asked])
    held = np.concatenate(ids)
    try:
        chunks = [(held, np.concatenate(rows))]
        index = b"".join(id_index_parts(chunks, len(held), table.rows))
    except InputError as error:
        raise WeightsError(f"table {table.name!r}: {source.description}: {error}") from error
    return IdMap(table, IdIndex.open(index))


@dataclass(frozen=True, slots=True)
class _Sampled:
    rows: NDArray[np.int64]

    def __call__(self) -> Iterator[Chunk]:
        yield np.unique(self.rows, return_counts=True)
