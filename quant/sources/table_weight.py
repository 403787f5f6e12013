"""One table's trained weight: its key in a source, and reading of its rows."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from kernels.wording import counted, did_you_mean
from quant.sources.weight_source import SourceError, WeightSource, said_format

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Rows of TorchRec's quantized collections are padded to 16 bytes, those of its CPU shards to 1.
_ALIGNMENTS = (1, 16)
# DistributedDataParallel, torch.compile, and TorchRec's DistributedModelParallel.
_WRAPPERS = ("module", "_orig_mod", "_dmp_wrapped_module")
# Attributes of TorchRec's collections and modules that hold tables.
_PARENTS = ("embedding_bags", "embeddings", "embedding")


def bare_key(key: str) -> str:
    """A key without the parts added by module wrappers."""
    if not any(wrapper in key for wrapper in _WRAPPERS):
        return key
    return ".".join(step for step in key.split(".") if step not in _WRAPPERS)


# Names of torch's and FBGEMM's optimizers for their states, keys of checkpoints that hold these,
# and numbers of parameters, as in `state_dict()` of an optimizer.
_STATE = re.compile(
    r"(.*\.)?((\w+_)?optim(izer)?s?(_\w+)?|(max_)?exp_avg(_sq)?|square_avg|grad_avg|acc_delta"
    r"|momentum_buffer|momentum_?[12]|exp_inf|state\.\d+\.(?!weight|bias)\w+)(\..*)?",
    re.DOTALL,
)


def is_optimizer_state(key: str) -> bool:
    """True for keys such as `optim.state.0.exp_avg` and `emb.weight.momentum1`."""
    return _STATE.fullmatch(key) is not None


@dataclass(frozen=True, slots=True)
class TableWeight:
    """A weight `[rows, dim]` of a source; `stored` is the format of quantized rows."""

    source: WeightSource
    key: str
    rows: int
    dim: int
    stored: RowFormat | None = None

    def read(self, start: int, stop: int) -> Tensor:
        """Rows as read-only fp32 `[stop - start, dim]`, possibly the source's memory."""
        if self.stored is not None:
            return decode(self.stored, self.read_stored(start, stop), self.dim)
        return self.source.read(self.key, start, stop).to(torch.float32)

    def read_stored(self, start: int, stop: int) -> Tensor:
        """Quantized rows `[start, stop)` without padding, uint8 `[n, stored.row_bytes(dim)]`."""
        if self.stored is None:
            raise SourceError(f"{self.key!r} in {self.source.description} holds numbers")
        return self.source.read(self.key, start, stop)[:, : self.stored.row_bytes(self.dim)]


def find_weight(
    source: WeightSource,
    table: str,
    key: str | None,
    *,
    rows: int,
    dim: int,
    row_format: RowFormat | None = None,
) -> TableWeight:
    """Find a table's weight, and refuse one that does not match the spec.

    `key` None tries the table's name, `<table>.weight` and TorchRec's names for it, with any
    prefix. `row_format`, the spec's, decides the format of quantized rows of ambiguous width.
    Raises SourceError if no weight matches, several match, or its shape or dtype differs.
    """
    found = find_key(source, table, key)
    shape = source.shape(found)
    dtype = source.read(found, 0, min(1, shape[0])).dtype if shape else None
    if dtype is torch.uint8 and len(shape) == 2:
        return _quantized(source, table, found, rows=rows, dim=dim, row_format=row_format)
    if shape != (rows, dim):
        raise SourceError(
            f"table {table!r}: the spec says {counted(rows, 'row')} of dim {dim}, but {found!r} in "
            f"{source.description} is {list(shape)}"
        )
    if dtype not in FLOATING:
        raise SourceError(
            f"table {table!r}: {found!r} in {source.description} is {dtype}, expected one of "
            f"{', '.join(str(d) for d in FLOATING)}, or uint8 rows that are quantized already"
        )
    return TableWeight(source, found, rows, dim)


def _quantized(
    source: WeightSource,
    table: str,
    key: str,
    *,
    rows: int,
    dim: int,
    row_format: RowFormat | None,
) -> TableWeight:
    has_rows, width = source.shape(key)
    said = said_format(source, key)
    known = list(RowFormat) if said is None else [said]
    fitting = [f for f in known if width in _widths(f, dim)]
    if has_rows != rows or not fitting:
        raise SourceError(
            f"table {table!r}: the spec says {counted(rows, 'row')} of dim {dim}, but {key!r} in "
            f"{source.description} is {has_rows} quantized rows of "
            f"{counted(width, 'byte')} each, expected "
            f"{rows} of {_expected(dim, row_format)}"
        )
    if row_format is None:
        # No other writer has rows of the other formats, which are as wide as some of these.
        fitting = [f for f in fitting if f not in {RowFormat.BF16, RowFormat.FP8}] or fitting
        row_format = fitting[0] if len(fitting) == 1 else None
    if row_format is None or row_format not in fitting:
        raise SourceError(
            f"table {table!r}: {key!r} in {source.description} is quantized already; its rows of "
            f"{counted(width, 'byte')} can be {' or '.join(fitting)}, "
            + (
                "say which with the table's 'format'"
                if row_format is None
                else f"not {row_format} as the spec says: they are taken over as they are"
            )
        )
    return TableWeight(source, key, rows, dim, row_format)


def _widths(row_format: RowFormat, dim: int) -> set[int]:
    row_bytes = row_format.row_bytes(dim)
    return {-(-row_bytes // alignment) * alignment for alignment in _ALIGNMENTS}


def _expected(dim: int, row_format: RowFormat | None) -> str:
    formats: Sequence[RowFormat] = [row_format] if row_format else list(RowFormat)
    return ", ".join(
        f"{' or '.join(map(str, sorted(_widths(f, dim))))} bytes ({f})" for f in formats
    )


_Names = defaultdict[str, set[str]]


@lru_cache(maxsize=1)  # A source is searched for one table after the other.
def _by_name(keys: tuple[str, ...]) -> tuple[_Names, _Names]:
    """Keys by their bare forms, and by the tables that they name below a collection."""
    by_bare_key, by_table = _Names(set), _Names(set)
    for key in keys:
        bare = bare_key(key)
        by_bare_key[bare].add(key)
        *steps, last = bare.split(".")
        for at, step in enumerate(steps):
            if step in _PARENTS and last == "weight":
                by_table[".".join(steps[at + 1 :])].add(key)
    return by_bare_key, by_table


def find_key(source: WeightSource, table: str, key: str | None) -> str:
    """The key of a table's weight, as `find_weight`; SourceError unless exactly one matches."""
    by_bare_key, by_table = _by_name(tuple(source.keys()))
    names = (table, f"{table}.weight") if key is None else (key,)
    # Names below the prefixes of wrappers at the time of saving.
    found = sorted({k for name in names for k in by_bare_key.get(bare_key(name), ())})
    for name in names:
        if name in found:
            return name
    if key is not None and not found:
        raise SourceError(
            f"table {table!r}: {source.description} holds no weight {key!r}"
            f"{did_you_mean(key, source.keys())}"
        )
    found = found or sorted(by_table.get(table, ()))
    if len(found) == 1:
        return found[0]
    if found:
        raise SourceError(
            f"table {table!r}: several weights of {source.description} could be it: "
            f"{', '.join(found)}; say which with the table's 'weights'"
        )
    keys = sorted(source.keys())
    shown = ", ".join(keys[:8]) + (", ..." if len(keys) > 8 else "")
    raise SourceError(
        f"table {table!r}: {source.description} holds none of {table!r}, {table + '.weight'!r}, "
        f"'{_PARENTS[0]}.{table}.weight'; it holds {shown}{did_you_mean(table, keys)}; "
        "name the table's key with its 'weights' (TableSpec(weights=...))"
    )
