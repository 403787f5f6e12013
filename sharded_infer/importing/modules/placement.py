"""The spec of a module's lookups: tables, features, sequences and dense inputs."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor

from sharded_infer.errors import SpecError
from sharded_infer.importing.modules.example import Example, Leaf
from sharded_infer.importing.modules.exported import source_line
from sharded_infer.importing.modules.id_tags import Cell
from sharded_infer.importing.modules.lookups import ModuleLookup, table_path
from sharded_infer.specs.id_steps import IdStep
from sharded_infer.specs.model_spec import DenseSpec, TableSpec
from sharded_infer.specs.sequence_input import LENGTHS
from sharded_infer.specs.sequence_spec import SequenceSpec

# Ending of a dense input with the numbers of a feature that a module takes as numbers too.
_NUMBERS = "_numbers"
_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_\-]+")


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring columns of a leaf that are one input of the model.

    Attributes:
        sequence: the tower's input of its rows, unpooled; empty if they are pooled.
        is_bag: its ids are one bag wherever they are looked up.
        has_ids: the tower takes the ids too.
        is_dense: it is a dense input.
    """

    name: str
    leaf: int
    first: int
    last: int
    sequence: str = ""
    is_bag: bool = False
    has_ids: bool = False
    is_dense: bool = False

    @property
    def is_sequence(self) -> bool:
        """True if its rows, or ids, go to the tower unpooled."""
        return bool(self.sequence)

    @property
    def width(self) -> int:
        """Columns."""
        return self.last - self.first


class TableKey(NamedTuple):
    """A feature's use of a parameter: the steps of its ids, and how its bags are pooled."""

    weight: str
    feature: str
    steps: tuple[IdStep, ...]
    pooling: str | None


def table_key(lookup: ModuleLookup, block: Block, cell: Cell) -> TableKey:
    """The use of a parameter by a lookup's id."""
    pooling = lookup.pooling if block.is_bag else None
    return TableKey(lookup.weight, block.name, cell.steps, pooling)


@dataclass(slots=True)
class _Table:
    weight: str
    name: str
    pooling: str | None = None
    features: list[str] = field(default_factory=list)
    steps: dict[str, tuple[IdStep, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """The model's inputs and tables.

    Attributes:
        blocks: in the order of the leaves' columns; those that nothing reads are left out.
        tables: by the parameter's path and the steps of a block's ids; several where one feature
            looks up the same table by different steps.
    """

    blocks: tuple[Block, ...]
    tables: tuple[TableSpec, ...]
    weights: Mapping[str, str]
    table_of: Mapping[TableKey, str]
    dense: DenseSpec
    sequences: Mapping[str, SequenceSpec]

    def block_of(self, cell: Cell) -> Block:
        """The feature of a cell."""
        return next(
            block
            for block in self.blocks
            if block.leaf == cell.leaf
            and block.first <= cell.column < block.last
            and not block.is_dense
        )


def place(
    example: Example,
    lookups: Sequence[ModuleLookup],
    parameters: Mapping[str, Tensor],
    needed: Mapping[tuple[int, int], bool],
) -> Placement:
    """Choose the inputs and tables of a model.

    Args:
        lookups: those that are cut out of the module.
        parameters: by path; `[rows, dim]` or `[rows]`.
        needed: leaves and columns that the tower reads too; True: as numbers that may have
            fractions.

    Raises SpecError where two inputs get one name.
    """
    blocks = tuple(_blocks(example.leaves, lookups, needed))
    _check_names(blocks)
    features = [block for block in blocks if not block.is_dense]
    by_column = {(b.leaf, column): b for b in features for column in range(b.first, b.last)}
    tables: dict[str, list[_Table]] = defaultdict(list)
    table_of: dict[TableKey, str] = {}
    for lookup in lookups:
        for cell in lookup.cells:
            block = by_column[cell.leaf, cell.column]
            key = table_key(lookup, block, cell)
            if key not in table_of:
                table_of[key] = _table_for(tables[lookup.weight], key)
    specs, weights = [], {}
    names: set[str] = set()
    for copies in tables.values():
        for table in copies:
            if table.name in names:
                raise SpecError(f"two parameters are tables of the name {table.name!r}")
            names.add(table.name)
            weight = parameters[table.weight]
            weights[table.name] = table.weight
            specs.append(
                TableSpec(
                    table.name,
                    rows=len(weight),
                    dim=1 if weight.dim() == 1 else weight.shape[1],
                    features=tuple(table.features),
                    required=True,
                    pooling="mean" if table.pooling == "mean" else "sum",
                    padding_idx=_padding(lookups, table.weight, weight),
                    id_steps=table.steps,
                )
            )
    sequences = {
        block.sequence: SequenceSpec(
            max_length=block.width,
            pad_to="max_length",
            features=(block.name,),
            ids=(block.name,) if block.has_ids else (),
            **_padded(example.leaves[block.leaf], block, specs),
        )
        for block in blocks
        if block.is_sequence
    }
    dense = DenseSpec({block.name: block.width for block in blocks if block.is_dense})
    return Placement(blocks, tuple(specs), weights, table_of, dense, sequences)


def _padded(leaf: Leaf, block: Block, tables: Sequence[TableSpec]) -> dict[str, Any]:
    """The fewest ids of a sequence, and the side of its zeros if it may be shorter.

    It may where id 0 means a row of zeros in all its tables, and the example shows the side.
    """
    own = [table for table in tables if block.name in table.features]
    ids = leaf.tensor.reshape(len(leaf.tensor), -1)[:, block.first : block.last]
    at_end, at_start = int((ids[:, -1] == 0).sum()), int((ids[:, 0] == 0).sum())
    is_zero = all(table.padding_idx == 0 and block.name not in table.id_steps for table in own)
    if block.width == 1 or not is_zero or at_end == at_start:
        return {"min_length": block.width}
    return {"pad": "left" if at_start > at_end else "right"}


def _table_for(copies: list[_Table], key: TableKey) -> str:
    """The copy of a table for a use of it; a new one if all have the feature, or pool otherwise."""
    for table in copies:
        pools_alike = None in (table.pooling, key.pooling) or table.pooling == key.pooling
        if key.feature not in table.features and pools_alike:
            break
    else:
        base = _UNNAMEABLE.sub("_", table_path(key.weight).replace(".", "_")).strip("_-") or "table"
        table = _Table(key.weight, f"{base}_{len(copies) + 1}" if copies else base)
        copies.append(table)
    table.features.append(key.feature)
    table.pooling = table.pooling or key.pooling
    if key.steps:
        table.steps[key.feature] = key.steps
    return table.name


def _padding(lookups: Sequence[ModuleLookup], path: str, weight: Tensor) -> int | None:
    """The row that counts as no row: that of bags, or one of zeros.

    Raises SpecError where lookups of one table differ in it.
    """
    own = [lookup for lookup in lookups if lookup.weight == path]
    paddings = {lookup.padding for lookup in own if lookup.padding is not None}
    if len(paddings) > 1:
        raise SpecError(
            f"table {table_path(path)!r}: lookups with padding_idx of {sorted(paddings)}"
        )
    if not paddings:
        return None
    (padding,) = paddings
    is_zero = not bool(weight[padding].any())
    leaves_out = {lookup.padding is not None for lookup in own if lookup.pooling is not None}
    if leaves_out == {True} and (is_zero or all(lookup.pooling for lookup in own)):
        return padding
    if True in leaves_out:
        raise SpecError(
            f"table {table_path(path)!r}: bags leave row {padding} out, and other lookups read it"
        )
    return padding if is_zero and leaves_out != {False} else None


def _blocks(
    leaves: Sequence[Leaf],
    lookups: Sequence[ModuleLookup],
    needed: Mapping[tuple[int, int], bool],
) -> Iterator[Block]:
    uses: dict[tuple[int, int], set[Any]] = defaultdict(set)
    bagged: set[tuple[int, int]] = set()
    for lookup in lookups:
        for cell in lookup.cells:
            uses[cell.leaf, cell.column].add((lookup.weight, cell.steps))
            if lookup.pooling is not None:
                bagged.add((cell.leaf, cell.column))
    for number, leaf in enumerate(leaves):
        for first, last in _runs(number, leaf, uses, needed):
            columns = {(number, column) for column in range(first, last)}
            is_looked_up = any(uses[column] for column in columns)
            read = [needed[column] for column in columns if column in needed]
            name, place = _name(leaf, first, last), (number, first, last)
            if is_looked_up:
                has_ids = bool(read) and not any(read)
                is_bag = columns <= bagged and not read and _only_bags(lookups, columns)
                if leaf.is_bag and not is_bag:
                    raise _unpooled(name, lookups, columns)
                is_sequence = not is_bag and (last - first > 1 or has_ids)
                sequence = _sequence_name(name, leaves) if is_sequence else ""
                yield Block(name, *place, sequence, is_bag, has_ids)
                name += _NUMBERS
            if any(read) or (read and not is_looked_up):
                yield Block(name, *place, is_dense=True)


def _unpooled(
    name: str, lookups: Sequence[ModuleLookup], columns: set[tuple[int, int]]
) -> SpecError:
    lines = [
        source_line(lookup.node)
        for lookup in lookups
        if lookup.pooling not in ("sum", "mean")
        and columns & {(cell.leaf, cell.column) for cell in lookup.cells}
    ]
    return SpecError(
        f"key {name!r} of a KeyedJaggedTensor is read by more than sums and means of its bags"
        f"{(lines or [''])[0]}: pass histories as [B, L] tensors, and numbers as dense inputs"
    )


def _sequence_name(name: str, leaves: Sequence[Leaf]) -> str:
    """The name of a feature's sequence: its own, unless an input has that of its lengths."""
    others = {leaf.name for leaf in leaves} | {n for leaf in leaves for n in leaf.columns or ()}
    return f"{name}_rows" if name + LENGTHS in others else name


def _only_bags(lookups: Sequence[ModuleLookup], columns: set[tuple[int, int]]) -> bool:
    """True if these columns are one whole bag wherever they are looked up."""
    reading = [
        lookup
        for lookup in lookups
        if columns & {(cell.leaf, cell.column) for cell in lookup.cells}
    ]
    return all(
        lookup.pooling in ("sum", "mean")
        and {(cell.leaf, cell.column) for cell in lookup.cells} == columns
        and len(lookup.cells) == len(columns)
        for lookup in reading
    )


def _runs(
    number: int,
    leaf: Leaf,
    uses: Mapping[tuple[int, int], set[Any]],
    needed: Mapping[tuple[int, int], bool],
) -> Iterator[tuple[int, int]]:
    """Neighbouring columns that are used alike, or have one name."""
    of_columns = [_use(number, column, leaf, uses, needed) for column in range(leaf.width)]
    labels = leaf.columns or of_columns
    ends = [at for at in range(1, leaf.width) if labels[at] != labels[at - 1]]
    runs = list(pairwise([0, *ends, leaf.width]))
    if leaf.columns is not None or leaf.tensor.is_floating_point():
        yield from runs
        return
    # An id that is not looked up itself, such as the last of a history, goes with the others.
    at = 0
    while at < len(runs):
        first, last = runs[at]
        if at + 1 < len(runs) and _is_one(runs[at], runs[at + 1], of_columns):
            last, at = runs[at + 1][1], at + 1
        yield first, last
        at += 1


def _is_one(run: tuple[int, int], following: tuple[int, int], of_columns: Sequence[Any]) -> bool:
    own, other = of_columns[run[0]], of_columns[following[0]]
    (first, last), (start, end) = (run, following) if own else (following, run)
    return bool(own) != bool(other) and last - first > 1 and end - start == 1


def _use(
    number: int,
    column: int,
    leaf: Leaf,
    uses: Mapping[tuple[int, int], set[Any]],
    needed: Mapping[tuple[int, int], bool],
) -> Any:
    looked_up = frozenset(uses.get((number, column), ()))
    if leaf.tensor.is_floating_point():
        return looked_up, (number, column) in needed
    return looked_up


def _name(leaf: Leaf, first: int, last: int) -> str:
    if leaf.columns is not None:
        return leaf.columns[first]
    if last - first == leaf.width:
        return leaf.name
    return f"{leaf.name}_{first}" if last - first == 1 else f"{leaf.name}_{first}_{last - 1}"


def _check_names(blocks: Sequence[Block]) -> None:
    seen: dict[str, Block] = {}
    for block in blocks:
        if block.name in seen:
            raise SpecError(f"two inputs of the module have the name {block.name!r}")
        seen[block.name] = block
