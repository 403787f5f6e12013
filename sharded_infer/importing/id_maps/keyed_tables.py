"""Tables trained by id: ids and rows side by side, in shards.

| written by | ids | rows |
| --- | --- | --- |
| dynamicemb | `<table>_emb_keys.rank_R.world_size_W` | `<table>_emb_values.rank_R.world_size_W` |
| TorchEasyRec | `<table>.keys` in `sparse_dynamic_embedding-RR-of-WW.npz` | `<table>.values` |
| DeepRec | tensor `<name>-keys`, or `<name>/part_P-keys` | `<name>-values` |

DeepRec's `<name>-freqs` are use counts of ids. So are dynamicemb's `<table>_emb_scores.rank_R...`
under LFU; under other strategies they may be times.

Sources: `dump_load.py` of NVIDIA's recsys-examples (dynamicemb), `export_util.py` of TorchEasyRec,
and docs/Embedding-Variable-Export-Format.md of DeepRec. An id's row is its position.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernels.wording import counted
from quant.sources.arranged_rows import JoinedRows, Part
from quant.sources.checkpoint import open_weights, weights_of
from quant.sources.numpy_files import RawFileSource
from quant.sources.table_weight import FLOATING
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.importing.id_maps.stored_ids import (
    by_position,
    check_column,
    counts_by_position,
)

_DYNAMICEMB = re.compile(
    r"(?P<table>.+)_emb_keys\.rank_(?P<part>\d{1,6})\.world_size_(?P<of>\d{1,6})"
)
_EASYREC = re.compile(r"sparse_dynamic_embedding-(?P<part>\d{1,6})-of-(?P<of>\d{1,6})\.npz")
_DEEPREC = re.compile(r"(?P<table>.+?)(/part_(?P<part>\d{1,6}))?-keys")


@dataclass(frozen=True, slots=True)
class KeyedTables:
    """Tables and their id maps.

    Attributes:
        weights: each table's rows, fp32 `[rows, dim]`, under the table's name.
        id_maps: each table's ids; the spec defines the handling of unknown ids.
    """

    weights: WeightSource
    id_maps: Mapping[str, IdMapSource]

    def beside(self, weights: object) -> WeightSource:
        """These tables and a model's other `weights` as one source; WeightsError if names clash."""
        other = weights_of(weights)
        parts: dict[str, list[Part]] = {key: [(other, key)] for key in list(other.keys())}
        for key in list(self.weights.keys()):
            if key in parts:
                raise WeightsError(
                    f"{other.description}: holds a weight {key!r}, as {self.weights.description}"
                )
            parts[key] = [(self.weights, key)]
        return JoinedRows(parts, f"{other.description} and {self.weights.description}")


def open_keyed_tables(
    weights: Path | str | Mapping[str, object] | WeightSource,
    *,
    scores_are_frequencies: bool = False,
) -> KeyedTables:
    """Open tables that were trained by id.

    Args:
        weights: a folder written by dynamicemb's `DynamicEmbDump`, or one of its collections; the
            `sparse` folder of a TorchEasyRec export; or DeepRec's tensors by name, in memory or in
            a file (`.npz`, `.safetensors`).
        scores_are_frequencies: dynamicemb's scores are use counts of ids.

    Raises:
        WeightsError: no such tables, a missing or truncated shard, or ids without rows; names the
            table and the file.
    """
    try:
        if isinstance(weights, str | Path) and Path(weights).is_dir():
            return _of_folder(Path(weights), has_frequencies=scores_are_frequencies)
        source = open_weights(Path(weights)) if isinstance(weights, str | Path) else None
        return _deeprec(source or weights_of(weights))
    except SourceError as error:
        raise WeightsError(str(error)) from error


def _of_folder(folder: Path, *, has_frequencies: bool) -> KeyedTables:
    # A dump has a folder for each collection.
    files = sorted(p for place in (folder, *_folders(folder)) for p in place.iterdir())
    ids: dict[str, list[Part]] = {}
    rows: dict[str, list[Part]] = {}
    uses: dict[str, list[Part]] = {}
    for table, parts in _grouped(_DYNAMICEMB, files).items():
        ids[table] = [(RawFileSource(path, "keys", "int64"), "keys") for path in parts]
        values = [path.with_name(path.name.replace("_emb_keys.", "_emb_values.")) for path in parts]
        width = _width(table, ids[table], values)
        if has_frequencies:
            scores = [
                path.with_name(path.name.replace("_emb_keys.", "_emb_scores.")) for path in parts
            ]
            uses[table] = [(RawFileSource(path, "scores", "int64"), "scores") for path in scores]
        rows[table] = [(RawFileSource(p, "values", "float32", width), "values") for p in values]
    for parts in _grouped(_EASYREC, files).values():
        for source in map(open_weights, parts):
            for key in list(source.keys()):
                if key.endswith(".keys"):
                    table = key.removesuffix(".keys")
                    ids.setdefault(table, []).append((source, key))
                    rows.setdefault(table, []).append((source, f"{table}.values"))
    if not ids:
        raise WeightsError(
            f"{folder}: holds no ids of dynamicemb (<table>_emb_keys.rank_R.world_size_W) or of "
            "TorchEasyRec (sparse_dynamic_embedding-RR-of-WW.npz with <table>.keys)"
        )
    return _tables(ids, rows, str(folder), uses)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())


def _grouped(pattern: re.Pattern[str], files: Iterable[Path]) -> dict[str, list[Path]]:
    found: dict[str, dict[int, Path]] = {}
    wholes: dict[str, int] = {}
    for path in files:
        match = pattern.fullmatch(path.name)
        if match is None:
            continue
        table = match.groupdict().get("table", "")
        part, whole = int(match["part"]), int(match["of"])
        if whole != wholes.setdefault(table, whole) or part in found.get(table, {}):
            raise WeightsError(
                f"{path}: a second part {part} of {whole}, expected one of each of "
                f"{wholes[table]}, in one folder"
            )
        found.setdefault(table, {})[part] = path
    for table, parts in found.items():
        missing = sorted(set(range(wholes[table])) - parts.keys())
        if missing or len(parts) != wholes[table]:
            place = next(iter(parts.values()))
            raise WeightsError(
                f"{place}: expected parts 0 to {wholes[table] - 1}, got "
                f"{sorted(parts)[:8]!s:.100}{f', none of part {missing[0]}' if missing else ''}"
            )
    return {table: [parts[part] for part in sorted(parts)] for table, parts in found.items()}


def _width(table: str, ids: Iterable[Part], values: Iterable[Path]) -> int:
    """Numbers of a row, which the files do not declare."""
    width = 0
    for (source, key), path in zip(ids, values, strict=True):
        count = source.shape(key)[0]
        numbers = RawFileSource(path, "values", "float32").shape("values")[0]
        width = width or (numbers // count if count else 0)
        if numbers != count * width:
            raise WeightsError(
                f"{path}: expected {counted(count, 'row')} of {width} numbers, one for each id of "
                f"{source.description}, got {numbers}"
            )
    if not width:
        raise WeightsError(f"table {table!r}: expected ids with rows, got none")
    return width


def _deeprec(source: WeightSource) -> KeyedTables:
    found: dict[str, dict[int, str]] = {}
    for key in list(source.keys()):
        match = _DEEPREC.fullmatch(key)
        if match is not None:
            parts = found.setdefault(match["table"], {})
            part = -1 if match["part"] is None else int(match["part"])
            if part in parts:
                raise WeightsError(f"{source.description}: {key!r}: a second part {part}")
            parts[part] = key
    if not found:
        raise WeightsError(
            f"{source.description}: holds no tensor of ids, expected <name>-keys or "
            "<name>/part_P-keys beside <name>-values, as DeepRec names them"
        )
    ids: dict[str, list[Part]] = {}
    rows: dict[str, list[Part]] = {}
    uses: dict[str, list[Part]] = {}
    for table, parts in found.items():
        if sorted(parts) not in ([-1], list(range(len(parts)))):
            raise WeightsError(
                f"{source.description}: table {table!r}: expected parts from 0 up, got "
                f"{sorted(parts)[:8]}"
            )
        names = [parts[part] for part in sorted(parts)]
        ids[table] = [(source, name) for name in names]
        rows[table] = [(source, f"{name.removesuffix('-keys')}-values") for name in names]
        counts = [f"{name.removesuffix('-keys')}-freqs" for name in names]
        if set(counts) <= set(source.keys()):
            uses[table] = [(source, name) for name in counts]
    return _tables(ids, rows, source.description, uses)


def _tables(
    ids: Mapping[str, list[Part]],
    rows: Mapping[str, list[Part]],
    description: str,
    uses: Mapping[str, list[Part]] | None = None,
) -> KeyedTables:
    for table, parts in rows.items():
        for (id_source, id_key), (source, key) in zip(ids[table], parts, strict=True):
            count = check_column(id_source, id_key)
            shape = source.shape(key)
            dtype = source.read(key, 0, 0).dtype if shape else None
            if len(shape) != 2 or shape[0] != count or dtype not in FLOATING:
                raise WeightsError(
                    f"{source.description}: {key!r}: expected {counted(count, 'row')} of floating "
                    f"numbers, one for each id of {id_key!r}, got {list(shape)} {dtype}"
                )
    keys, counts = JoinedRows(ids, description), JoinedRows(uses or {}, description)
    id_maps = {name: _ids(keys, name, counts) for name in ids}
    return KeyedTables(JoinedRows(rows, description), id_maps)


def _ids(keys: JoinedRows, table: str, counts: JoinedRows) -> IdMapSource:
    count, frequencies = check_column(keys, table), None
    if table in set(counts.keys()):
        check_column(counts, table, count)
        frequencies = partial(counts_by_position, counts, table, count)
    return IdMapSource(
        f"{keys.description}: table {table!r}",
        count,
        lambda: by_position(keys, table, count),
        table_rows=count,
        frequencies=frequencies,
    )
