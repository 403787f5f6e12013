"""The error for tables that do not fit: the excess, the tables, and remedies."""

from kernels.row_format import RowFormat
from kernels.wording import counted
from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.cost_model import CostModel

_NAMED = 5


def does_not_fit(load: CostModel) -> str:
    """Explain that a model's tables exceed a topology's memory."""
    tables = [use.table for use in load.uses.values()]
    needed = sum(table.stored_bytes for table in tables)
    limits = [device.memory_bytes or 0 for device in load.topology.devices]
    room = sum(limits)
    largest = sorted(tables, key=lambda t: (-t.stored_bytes, t.name))[:_NAMED]
    named = ", ".join(f"{t.name!r} {size_text(t.stored_bytes)}" for t in largest)
    lines = [
        f"the tables do not fit on topology {load.topology.name!r}: {size_text(needed)} "
        f"({counted(needed, 'byte')}) of rows, room for {size_text(room)} on "
        f"{counted(len(limits), 'rank')}: "
        f"{counted(needed - room, 'byte')} too many; the largest: {named}"
    ]
    ways = (_lower_formats(load, needed - room), _more_ranks(load, needed))
    if helps := [way for way in ways if way]:
        lines.append("to make them fit: " + "; or ".join(helps))
    return "; ".join(lines)


def _lower_formats(load: CostModel, excess: int) -> str | None:
    """The fewest tables whose next lower format frees enough."""
    savings = []
    for use in load.uses.values():
        table = use.table
        lower = [f for f in RowFormat if f.row_bytes(table.dim) < table.row_bytes]
        if lower:
            # The next one down loses least; of equal ones, int8 loses less than fp8.
            following = max(lower, key=lambda f: (f.row_bytes(table.dim), f.is_integer))
            saved = (table.row_bytes - following.row_bytes(table.dim)) * table.rows
            savings.append((saved, table.name, following))
    chosen, freed = [], 0
    for saved, name, row_format in sorted(savings, key=lambda s: (-s[0], s[1])):
        if freed >= excess:
            break
        chosen.append(f"{name!r} as {row_format} ({size_text(saved)} less)")
        freed += saved
    if freed < excess or not chosen:
        return None
    more = f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else ""
    return f"store {', '.join(chosen[:_NAMED])}{more}"


def _more_ranks(load: CostModel, needed: int) -> str | None:
    largest = max((d.memory_bytes or 0 for d in load.topology.devices), default=0)
    if not largest:
        return None
    room = sum(device.memory_bytes or 0 for device in load.topology.devices)
    more = max(1, -(-(needed - room) // largest))
    return f"add {counted(more, 'rank')} of {size_text(largest)}"
