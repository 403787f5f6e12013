"""Report of an import: tables and inputs of a module, the tower's own lookups, and doubts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from kernels.wording import listed
from sharded_infer.importing.modules.example import Example
from sharded_infer.importing.modules.exported import Called, source_line
from sharded_infer.importing.modules.lookups import ModuleLookup, TowerLookup
from sharded_infer.importing.modules.placement import Placement

_EXACT_INTEGERS = 2**24  # in fp32


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A parameter that became a table.

    Attributes:
        features: each with how it is used: `pooled`, `sequence`, or `sequence with ids`.
        line: of the module's code that looks rows up; empty if unknown.
    """

    table: str
    rows: int
    dim: int
    features: dict[str, str]
    line: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """Findings of an import.

    Attributes:
        tables: in the spec's order.
        dense: dense inputs and their widths.
        left: parameters that the tower looks rows up in itself.
        doubts: sentences on what deserves a look.
    """

    tables: tuple[FoundTable, ...]
    dense: dict[str, int]
    outputs: tuple[str, ...]
    left: tuple[TowerLookup, ...]
    doubts: tuple[str, ...]

    def __str__(self) -> str:
        """A line for each table, input and doubt."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for table in self.tables:
            of = ", ".join(f"{name} ({use})" for name, use in table.features.items())
            yield f"table {table.table} [{table.rows}, {table.dim}]: {of}{table.line}"
        for name, width in self.dense.items():
            yield f"dense {name} [B, {width}]"
        yield f"outputs: {', '.join(self.outputs)}"
        for kept in self.left:
            yield f"in the tower: {kept.weight} [{kept.rows}, {kept.dim}]: {kept.reason}{kept.line}"
        yield from (f"look at: {doubt}" for doubt in self.doubts)


def report_of(
    example: Example,
    lookups: Sequence[ModuleLookup],
    left: Sequence[TowerLookup],
    placement: Placement,
    module: Called,
    *,
    user: Sequence[str],
    whole: Sequence[str],
    left_out: int,
) -> ImportReport:
    """The report of a cut module.

    Args:
        user: the inputs that a request sends once.
        whole: paths of tables' parameters that the tower reads too.
        left_out: samples whose scores are not finite.
    """
    uses = {block.name: _use(block.is_sequence, block.has_ids) for block in placement.blocks}
    lines: dict[str, str] = {}
    for lookup in lookups:
        lines.setdefault(lookup.weight, source_line(lookup.node))
    tables = tuple(
        FoundTable(
            table.name,
            table.rows,
            table.dim,
            {name: uses[name] for name in table.features},
            lines[placement.weights[table.name]],
        )
        for table in placement.tables
    )
    doubts = [*_doubts(example, placement, user, whole)]
    if module.dropped:
        doubts.append(f"outputs without a number for each sample are left out: {module.dropped}")
    if left_out:
        doubts.append(f"{left_out} samples are not compared: their scores are NaN or infinity")
    dense = dict(placement.dense.inputs)
    return ImportReport(tables, dense, module.outputs, tuple(left), tuple(doubts))


def _use(is_sequence: bool, has_ids: bool) -> str:
    return ("sequence with ids" if has_ids else "sequence") if is_sequence else "pooled"


def _doubts(
    example: Example, placement: Placement, user: Sequence[str], whole: Sequence[str]
) -> Iterator[str]:
    read = {block.leaf for block in placement.blocks}
    for number, leaf in enumerate(example.leaves):
        if number not in read:
            yield f"no output depends on the input {leaf.name!r}, which the version does not take"
    for block in placement.blocks:
        dtype = example.leaves[block.leaf].tensor.dtype
        if block.is_dense and dtype is torch.float64:
            yield f"{block.name!r} is torch.float64 in the module, and sent as fp32"
        if block.is_dense and not dtype.is_floating_point and dtype is not torch.bool:
            yield (
                f"{block.name!r} looks no rows up: its {dtype} numbers are sent as fp32, exact up "
                f"to {_EXACT_INTEGERS}"
            )
    histories = [block for block in placement.blocks if block.is_sequence and block.width > 1]
    for block in histories:
        if placement.sequences[block.sequence].shortest == block.width:
            yield (
                f"{block.name!r} has {block.width} ids of each sample, as in the example: pad as "
                "in training"
            )
        else:
            yield f"of {block.name!r} the last {block.width} ids are used, the example's length"
    if histories and not user:
        names = listed([repr(block.name) for block in histories])
        yield f"pass {names} as `user` if a request's samples share them: they are read once"
    for weight in whole:
        yield f"the tower also multiplies all rows of {weight!r}, which it keeps in fp32"
