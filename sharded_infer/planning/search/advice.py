"""The error for tables that do not fit: the excess, the tables, and remedies that were tried."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from kernels.row_format import RowFormat
from kernels.wording import counted
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.table_use import TableUse

_NAMED = 5
_MOST_RANKS = 128
_MOST_TRIALS = 8  # of lower formats

Fits = Callable[[CostModel], bool]


def excess(load: CostModel) -> str:
    """A sentence that a model's tables exceed a topology's memory."""
    rows = sum(use.table.stored_bytes for use in load.uses.values())
    maps = sum(map(load.map_bytes, load.uses))
    limits = [device.memory_bytes or 0 for device in load.topology.devices]
    room = sum(limits)
    largest = sorted(load.uses, key=lambda name: (-_bytes_of(load, name), name))[:_NAMED]
    named = ", ".join(f"{name!r} {size_text(_bytes_of(load, name))}" for name in largest)
    beyond = rows + maps - room
    return (
        f"the tables do not fit on topology {load.topology.name!r}: {size_text(rows)} "
        f"({counted(rows, 'byte')}) of rows{f' and {size_text(maps)} of id maps' if maps else ''}, "
        f"room for {size_text(room)} on {counted(len(limits), 'rank')}: "
        + (
            f"{counted(beyond, 'byte')} too many"
            if beyond > 0
            else "enough in all, but not in pieces: rows lie whole, columns repeat their headers, "
            "and hosts that map ids hold id maps"
        )
        + f"; the largest: {named}"
    )


def advice(load: CostModel, fits: Fits) -> str:
    """The end of that sentence: changes with which all tables are placed, as `fits` says."""
    ways = []
    if (lower := with_lower_formats(load, fits)) is not None:
        ways.append(_formats_text(load.uses, lower.uses))
    if (wider := with_more_ranks(load, fits)) is not None:
        more = len(wider.topology.devices) - len(load.topology.devices)
        size = size_text(wider.topology.devices[-1].memory_bytes or 0)
        ways.append(f"add {counted(more, 'rank')} of {size}")
    return f"; to make them fit: {'; or '.join(ways)}" if ways else ""


def with_lower_formats(load: CostModel, fits: Fits) -> CostModel | None:
    """The fewest tables in their next lower format with which all fit."""
    uses = dict(load.uses)
    needed = sum(_bytes_of(load, name) for name in uses)
    room = sum(device.memory_bytes or 0 for device in load.topology.devices)
    trials = 0
    for name, row_format, saved in sorted(_savings(load), key=lambda one: (-one[2], one[0])):
        uses[name] = replace(uses[name], table=replace(uses[name].table, row_format=row_format))
        needed -= saved
        if needed > room:
            continue
        lower = CostModel(dict(uses), load.topology, load.batch)
        if fits(lower):
            return lower
        trials += 1
        if trials == _MOST_TRIALS:
            break
    return None


def _savings(load: CostModel) -> Iterator[tuple[str, RowFormat, int]]:
    for name, use in load.uses.items():
        table = use.table
        lower = [f for f in RowFormat if f.row_bytes(table.dim) < table.row_bytes]
        if lower:
            # The next one down loses least; of equal ones, int8 loses less than fp8.
            following = max(lower, key=lambda f: (f.row_bytes(table.dim), f.is_integer))
            yield name, following, (table.row_bytes - following.row_bytes(table.dim)) * table.rows


def _formats_text(before: Mapping[str, TableUse], after: Mapping[str, TableUse]) -> str:
    changed = [
        (before[name].table.stored_bytes - use.table.stored_bytes, name, use.table.row_format)
        for name, use in after.items()
        if use != before[name]
    ]
    changed.sort(key=lambda one: (-one[0], one[1]))
    shown = [f"{name!r} as {said} ({size_text(saved)} less)" for saved, name, said in changed]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return f"store {', '.join(shown[:_NAMED])}{more}"


def with_more_ranks(load: CostModel, fits: Fits) -> CostModel | None:
    """The fewest more ranks like the largest, each on a host of its own, with which all fit."""
    devices = load.topology.devices
    asked = [device for device in devices if load.topology.is_asked(device)] or list(devices)
    largest = max(asked, key=lambda device: device.memory_bytes or 0)
    memory = largest.memory_bytes
    if not memory:
        return None
    if memory >= 1000:
        # As the advice says it, with three digits.
        memory = parse_size(size_text(memory).replace(" ", ""), "memory")
        largest = replace(largest, memory_bytes=memory)
    host = max(device.host for device in devices) + 1
    apart = len({device.host for device in devices}) > 1 or load.topology.front is not None

    def wider(more: int) -> CostModel:
        new = [replace(largest, host=host + i if apart else largest.host) for i in range(more)]
        return CostModel(load.uses, replace(load.topology, devices=(*devices, *new)), load.batch)

    room = sum(device.memory_bytes or 0 for device in devices)
    needed = sum(_bytes_of(load, name) for name in load.uses)
    few, many = 0, max(1, -(-(needed - room) // memory))
    while not fits(wider(many)):
        few, many = many, 2 * many
        if many > _MOST_RANKS:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if fits(wider(middle)) else (middle, many)
    return wider(many)


def _bytes_of(load: CostModel, table: str) -> int:
    return load.uses[table].table.stored_bytes + load.map_bytes(table)
