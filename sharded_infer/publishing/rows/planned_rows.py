"""Plans, and partitioning of the rows of tables that plans cut by rows.

    plan the tables; where hosts have parts of a table's rows, its parts end where theirs do
    sort the hashes of its ids, and give each part as many, one after another, as it has room for
    order the rows by part; within a part they stay in their order

A host then maps only the raw ids of its parts. Rows that unknown ids share come first in every
part, so a table with such rows grows by them, and is planned again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from sharded_infer.lookups.placement import place
from sharded_infer.planning.table_use import is_partitionable
from sharded_infer.progress import Progress
from sharded_infer.publishing.format_selection import FormatPlan
from sharded_infer.publishing.prepared_inputs import PlannedTables, plan_tables
from sharded_infer.publishing.quantization import open_format_plan
from sharded_infer.publishing.rows.row_order import RowOrder
from sharded_infer.publishing.rows.row_parts import (
    Cuts,
    MovedIds,
    RowOwners,
    RowParts,
    fit,
    parts_of_rows,
    row_owners,
    shared_rows,
)
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.repositories.repository import Repository

_log = logging.getLogger("sharded_infer")

# Plans tables; fronts map all ids of the named ones.
MakePlans = Callable[[FormatPlan, Collection[str]], PlannedTables]


def planned_rows(
    order: RowOrder,
    repository: Repository,
    *,
    topologies: Sequence[str],
    batch: int,
    progress: Progress,
) -> tuple[RowOrder, PlannedTables]:
    """Choose formats, make plans and order rows, with the arguments and errors of `publish`.

    Parts preserve `order`. Each id map of a partitioned table is read once more.
    """
    formats = open_format_plan(order.spec, order.weights, order.statistics, progress)

    def make_plans(made_of: FormatPlan, wholes: Collection[str]) -> PlannedTables:
        return plan_tables(
            made_of,
            repository=repository,
            topologies=topologies,
            statistics=order.statistics,
            batch=batch,
            wholes=wholes,
        )

    return _in_parts(order, formats, make_plans)


def _in_parts(
    order: RowOrder, formats: FormatPlan, make_plans: MakePlans
) -> tuple[RowOrder, PlannedTables]:
    uses = Counter(weight.key for weight in formats.weights.values())
    # Two tables with one weight would each need their own order.
    wholes = {name for name, weight in formats.weights.items() if uses[weight.key] > 1}
    owners: dict[str, RowOwners | None] = {}
    while True:
        planned, cuts = _planned(formats, wholes, make_plans)
        tables = {table.name: table for table in order.spec.mapped_tables}
        for name in cuts.keys() - owners.keys():
            owners[name] = row_owners(tables[name], order.id_maps[name])
        unfit = {name for name in cuts if not fit(tables[name], owners[name], cuts[name])}
        if not unfit:
            break
        wholes |= unfit
        for name in sorted(unfit):
            _log.warning(
                "table %r: a plan cuts it by rows, but its ids cannot be put in as many parts: "
                "fronts map them",
                name,
            )
    made = {
        name: parts_of_rows(tables[name], found, cuts[name])
        for name, found in owners.items()
        if name in cuts and found is not None
    }
    return _moved(order, planned, made)


def _planned(
    formats: FormatPlan, wholes: Collection[str], make_plans: MakePlans
) -> tuple[PlannedTables, dict[str, Cuts]]:
    parts: dict[str, int] = {}
    while True:
        grown = _grown(formats, parts)
        planned = make_plans(grown, wholes)
        cuts = _cuts(planned, wholes)
        shared = {t.name: len(shared_rows(t)) for t in grown.spec.mapped_tables}
        more = {
            name: len(of_table) - 1
            for name, of_table in cuts.items()
            if shared[name] and len(of_table) - 1 > parts.get(name, 1)
        }
        if not more:
            return planned, cuts
        parts |= more


def _grown(formats: FormatPlan, parts: Mapping[str, int]) -> FormatPlan:
    added = {t.name: len(shared_rows(t)) * (parts.get(t.name, 1) - 1) for t in formats.spec.tables}
    weights = {
        name: replace(weight, rows=weight.rows + added[name])
        for name, weight in formats.weights.items()
    }
    tables = tuple(replace(t, rows=t.rows + added[t.name]) for t in formats.tables)
    spec = replace(
        formats.spec,
        tables=tuple(replace(t, rows=t.rows + added[t.name]) for t in formats.spec.tables),
    )
    return replace(formats, spec=spec, weights=weights, tables=tables)


def _cuts(planned: PlannedTables, wholes: Collection[str]) -> dict[str, Cuts]:
    formats = planned.formats
    pieces = lay_out(formats.tables)
    tables = {table.name: table for table in formats.tables}
    names = {t.name for t in formats.spec.tables if is_partitionable(t)} - set(wholes)
    ends: dict[str, set[int]] = {}
    for plan in planned.plans.values():
        if len({plan.topology.devices[rank].host for rank in plan.ranks}) < 2:
            continue
        for piece in place(plan, tables, pieces):
            if piece.table.name in names and not piece.holds_all_rows:
                of_piece = {piece.first_row, piece.first_row + piece.rows}
                ends.setdefault(piece.table.name, set()).update(of_piece)
    return {name: tuple(sorted(of_table)) for name, of_table in ends.items()}


def _moved(
    order: RowOrder, planned: PlannedTables, made: Mapping[str, RowParts]
) -> tuple[RowOrder, PlannedTables]:
    if not made:
        return order, planned
    formats = planned.formats
    tables = tuple(made[t.name].ordered(t) if t.name in made else t for t in formats.spec.tables)
    orders = {
        name: parts.order if name not in order.orders else order.orders[name][parts.order]
        for name, parts in made.items()
    }
    keys = {name: formats.weights[name].key for name in made}
    moved = replace(
        order.reordered(orders, keys),
        spec=replace(formats.spec, tables=tables),
        id_maps={
            name: ids
            if name not in made
            else replace(ids, read=MovedIds(ids, made[name]), table_rows=None, frequencies=None)
            for name, ids in order.id_maps.items()
        },
    )
    source = moved.weights
    weights = {name: replace(weight, source=source) for name, weight in formats.weights.items()}
    return moved, replace(planned, formats=replace(formats, spec=moved.spec, weights=weights))
