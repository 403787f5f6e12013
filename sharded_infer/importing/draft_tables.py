"""Detection of a checkpoint's embedding tables."""

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.sources.table_weight import FLOATING, bare_key, find_weight, is_optimizer_state
from quant.sources.weight_source import SourceError, WeightSource, said_format
from sharded_infer.errors import SpecError
from sharded_infer.importing.draft_layers import LayerWeight, layer_weight
from sharded_infer.specs.spec_file import parse_spec

_TORCHREC = re.compile(r"(?:.*\.)?(embedding_bags|embeddings|embedding)\.([^.]+)\.weight")
# Last words of a key that do not identify the table.
_GENERIC = re.compile(r"\d+|emb|embed|embedding|embeddings|embedding_bag|weight|weights|table")
_POSITIONS = re.compile(r"(^|[._])(pos|position|positional|time|temporal)(_?emb|s?[._]|$)")
_MAX_DIM = 8192
STATE = "an optimizer's state"  # of a weight that is left out
# Formats of TorchRec's quantized collections; its bf16 has no lookup, its fp8 is another format.
_STORED = (RowFormat.INT8, RowFormat.INT4, RowFormat.INT2, RowFormat.FP16, RowFormat.FP32)
# TorchRec pads quantized rows to a multiple of this many bytes.
_ALIGNMENT = 16
_ELEMENTS_IN_BYTE = {RowFormat.INT8: 1, RowFormat.INT4: 2, RowFormat.INT2: 4}


@dataclass(frozen=True, slots=True)
class DraftedTable:
    """A weight that looks like a table, with doubts about guessed fields.

    Attributes:
        name: valid and unique among the tables.
        found_by_name: True if the key follows from the name and can be left out.
        feature: its input, of a table of linear terms that of the table beside it.
        pooled: False if each row is used alone, as far as the key tells.
        stored: the row format of a quantized weight.
    """

    name: str
    key: str
    found_by_name: bool
    feature: str
    pooled: bool
    rows: int
    dim: int
    stored: RowFormat | None
    doubts: Mapping[str, str]


def draft_tables(
    source: WeightSource, *, tower: Collection[str], dim: int | None, taken: Collection[str]
) -> tuple[list[DraftedTable], list[LayerWeight]]:
    """Probable tables in the source's order, and all other weights outside the tower.

    Tables are the weights under TorchRec's names. Without any, they are all matrices outside
    layers and the state of optimizers; keys without `emb` are doubtful. `dim`, the common dim if
    the tower determines it, decides ambiguous quantized rows. Raises SourceError if a weight is
    unreadable.
    """
    keys = list(source.keys())
    others = [key for key in keys if key not in tower]
    held = set(keys)
    unfit = {key: reason for key in others if (reason := _unfit(source.shape(key)))}
    # A model may be called an optimizer.
    named = not all(is_optimizer_state(key) for key in others if key not in unfit)
    ends = {end: key for key in reversed(keys) for end in _endings(key)}
    owners = ((key, _state_of(key, held, ends, named=named)) for key in others)
    states = {key: of for key, of in owners if of is not None}
    found = [key for key in others if key not in states and key not in unfit]
    probable = ((key, layer_weight(source, key, held)) for key in found)
    layers = {key: layer for key, layer in probable if layer is not None}
    torchrec = [key for key in found if _TORCHREC.fullmatch(key)]
    if not torchrec and len(layers) == len(found):
        # A doubtful table is better than none.
        layers = {key: layer for key, layer in layers.items() if layer.sure}
    chosen = dict.fromkeys(torchrec or [key for key in found if key not in layers])
    left_out = [
        layers.get(key) or LayerWeight(key, source.shape(key), "its key is no table's", sure=False)
        for key in found
        if key not in chosen
    ]
    left_out += [
        LayerWeight(key, source.shape(key), reason, sure=True)
        for key, reason in unfit.items()
        if key not in states
    ]
    left_out += [
        LayerWeight(key, source.shape(key), STATE, sure, of)
        for key, of in states.items()
        for sure in [key in unfit or not key.endswith("weight")]
    ]
    names = set(taken)
    tables = []
    for key in chosen:
        doubts = {} if "emb" in key.lower() else {"name": "is this an embedding table?"}
        drafted = _draft(source, key, dim, names, doubts)
        if isinstance(drafted, DraftedTable):
            names.add(drafted.name)
            tables.append(drafted)
        else:
            left_out.append(LayerWeight(key, source.shape(key), drafted, sure=False))
    return _joined(tables), left_out


def _joined(tables: Sequence[DraftedTable]) -> list[DraftedTable]:
    """The tables, those of linear terms with the feature of the table of their name and rows."""
    wide = {(_own_name(bare_key(t.key)), t.rows): t.name for t in tables if t.dim > 1}
    return [
        replace(table, feature=wide.get((_own_name(bare_key(table.key)), table.rows), table.name))
        if table.dim == 1
        else table
        for table in tables
    ]


def _endings(key: str) -> list[str]:
    steps = key.split(".")
    return [".".join(steps[first:]) for first in range(len(steps))]


def _state_of(
    key: str, keys: Collection[str], ends: Mapping[str, str], *, named: bool
) -> str | None:
    """Whose optimizer state a key is: ` of 'x'` for `optimizer.state.x.exp_avg`, "" if unknown.

    None if it is no such state. `ends` has a key by each of its endings; `named` says whether
    names alone tell it.
    """
    weight, _, _ = key.rpartition(".")
    endings = _endings(weight)
    found = next((ending for ending in endings if ending in keys), None)
    is_state = is_optimizer_state(key)
    if found is None and (is_state or "state" in weight.split(".")):
        # The model's own keys may have a prefix.
        found = next((ends[end] for end in endings if "." in end and end in ends), None)
    if found is not None:
        return f" of {found!a}"
    return "" if named and is_state else None


def _unfit(shape: tuple[int, ...]) -> str | None:
    """Why a weight of this shape cannot be a table."""
    if len(shape) != 2:
        return f"of {counted(len(shape), 'axis', plural='axes')}"
    return None if min(shape) else "empty"


def _draft(
    source: WeightSource, key: str, dim: int | None, taken: Collection[str], doubts: dict[str, str]
) -> DraftedTable | str:
    """A table, or why the matrix cannot be one."""
    rows, width = source.shape(key)
    dtype = source.read(key, 0, 1).dtype
    doubts = dict(doubts)
    stored: RowFormat | None = None
    if dtype is torch.uint8:
        guess = _guess_rows(source, key, rows, width, dim)
        if guess is None:
            return "too narrow for quantized rows"
        stored, width, unsure = guess
        doubts |= unsure
    elif dtype not in FLOATING:
        return f"of {str(dtype).removeprefix('torch.')} numbers"
    if width > _MAX_DIM:
        return f"wider than {_MAX_DIM}"
    own = _own_name(bare_key(key))
    name = _valid_name(own, taken)
    if _POSITIONS.search(bare_key(key)):
        doubts["name"] = "embeddings of positions and times are the tower's, unless ids are sent"
    elif own.isdigit():
        doubts["name"] = f"which feature is number {own}?"
    elif name != own:
        doubts["name"] = f"the checkpoint says {own!a}, which cannot be this table's name"
    return DraftedTable(
        name,
        key,
        _is_found(source, name, key, rows, width, stored),
        name,
        not _is_of_rows(key),
        rows,
        width,
        stored,
        doubts,
    )


def _guess_rows(
    source: WeightSource, key: str, rows: int, width: int, dim: int | None
) -> tuple[RowFormat, int, dict[str, str]] | None:
    said = said_format(source, key)
    unsure: dict[str, str] = {}
    if f"{key}_qscale" in set(source.keys()):
        unsure["format"] = "its scales are kept apart: such rows cannot be taken over"
    if dim is not None and (fitting := _fitting(source, key, rows, dim)):
        if len(fitting) > 1:
            unsure["format"] = f"rows of {counted(width, 'byte')} can be {' or '.join(fitting)}"
        return fitting[0], dim, unsure
    row_format = said or RowFormat.INT8
    in_byte = _ELEMENTS_IN_BYTE[row_format]
    most = (width - row_format.header_bytes) * in_byte
    if most < 1:
        return None
    least = most if width % _ALIGNMENT else max(1, most - _ALIGNMENT * in_byte + 1)
    # The only multiple of 16 bytes in range; half of it for a 16-byte row.
    step = _ALIGNMENT * in_byte
    guess = most if least == most else (most // step * step or step // 2)
    reach = f"is {most}" if least == most else f"is {least} to {most}"
    unsure["dim"] = f"of {row_format} rows of {counted(width, 'byte')} it {reach}"
    if said is None:
        unsure.setdefault("format", "rows that are quantized already: int8, or another one")
    return row_format, guess, unsure


def _fitting(source: WeightSource, key: str, rows: int, dim: int) -> list[RowFormat]:
    fitting = []
    said = said_format(source, key)
    for row_format in _STORED if said is None else (said,):
        with suppress(SourceError):
            find_weight(source, key, key, rows=rows, dim=dim, row_format=row_format)
            fitting.append(row_format)
    return fitting


def _is_found(
    source: WeightSource, name: str, key: str, rows: int, dim: int, stored: RowFormat | None
) -> bool:
    try:
        found = find_weight(source, name, None, rows=rows, dim=dim, row_format=stored)
    except SourceError:
        return False
    return found.key == key


def _is_of_rows(key: str) -> bool:
    torchrec = _TORCHREC.fullmatch(bare_key(key))
    return torchrec is not None and torchrec[1] == "embeddings"


def _own_name(key: str) -> str:
    if torchrec := _TORCHREC.fullmatch(key):
        return torchrec[2]
    *parents, name = key.removesuffix(".weight").split(".")
    words = name
    while parents and _GENERIC.fullmatch(name):
        name = parents.pop()
        words = f"{name}_{words}"
    return words


def _valid_name(name: str, taken: Collection[str]) -> str:
    if not _is_name(name):
        name = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:150]
        if not _is_name(name):
            name = f"table_{name}"
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    return unique


def _is_name(name: str) -> bool:
    try:
        parse_spec({"name": name, "tables": [{"name": "table", "rows": 1, "dim": 1}]})
    except SpecError:
        return False
    return True
