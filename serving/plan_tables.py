"""The tables of a plan's page: the hottest tables, the devices and the decisions."""

from collections.abc import Iterable, Sequence

from serving.page_text import escaped, escaped_name, time_text
from serving.plan_parts import HotTable, RankParts
from sharded_infer.load_model import LoadModel
from sharded_infer.planning.result import PlanResult
from sharded_infer.sizes import size_text

_NEAR_SLOWEST = 0.98  # of the slowest rank's time: such a rank is bound by time
_NEAR_LIMIT = 0.95  # of a device's memory: such a rank is bound by memory
_DECISIONS = 1000
_DECISION_CHARACTERS = 400_000  # of all decisions
_SHORT = 200  # characters of a decision that are shown before it is opened
_LONGEST = 10_000


def hottest_section(hottest: Sequence[HotTable], load: LoadModel) -> str:
    """The tables with the largest share of the time; nothing where no time is spent."""
    if not hottest:
        return ""
    rows = []
    for number, hot in enumerate(hottest, start=1):
        use = load.uses[hot.table]
        rows.append(
            (
                _cell(f"<b>{number}</b>", number),
                f'<th scope="row" class="name">{escaped_name(hot.table)}</th>',
                _cell(f"{hot.share:.1%}", hot.share),
                _cell(time_text(hot.seconds), hot.seconds),
                _cell(f"{use.pooling_factor:,.3g}", use.pooling_factor),
                _cell(size_text(use.table.stored_bytes), use.table.stored_bytes),
                f'<td class="keep">{hot.where}</td>',
            )
        )
    heads = ("#No.", "Table", "#Share of time", "#Time", "#Ids a sample", "#Stored", "Layout")
    note = "Where the time goes: over all ranks, without the fixed cost of a call."
    return _section("Hottest tables", note, _table("Hottest tables", heads, rows))


def devices_section(ranks: Sequence[RankParts], result: PlanResult) -> str:
    """What each device holds, what that costs, and what keeps it from taking more."""
    slowest = result.figures.max_seconds
    rows = []
    for rank, share in zip(ranks, result.figures.shares, strict=True):
        limit = rank.device.memory_bytes
        rows.append(
            (
                f'<th scope="row" class="n" data-v="{rank.rank}">{rank.rank}</th>',
                f'<td class="keep">{escaped(rank.device.kind)}, host {rank.device.host}</td>',
                _cell(f"{rank.tables:,}", rank.tables),
                _cell(size_text(rank.bytes), rank.bytes),
                _cell("no limit" if limit is None else size_text(limit), limit or 0),
                _cell("" if share is None else f"{share:.1%}", share or 0),
                _cell(time_text(rank.seconds), rank.seconds),
                _cell(f"{rank.seconds / slowest:.1%}" if slowest else "", rank.seconds),
                f'<td class="keep">{_binding(rank, share, slowest)}</td>',
            )
        )
    heads = (
        "#Rank",
        "Device",
        "#Tables",
        "#Memory",
        "#Limit",
        "#Used",
        "#Time",
        "#Of slowest",
        "Bound by",
    )
    note = (
        f"A rank is bound by time within {1 - _NEAR_SLOWEST:.0%} of the slowest, and by memory "
        f"from {_NEAR_LIMIT:.0%} of its limit."
    )
    return _section("Devices", note, _table("Devices", heads, rows))


def _binding(rank: RankParts, share: float | None, slowest: float) -> str:
    by_time = bool(rank.count) and rank.seconds >= _NEAR_SLOWEST * slowest
    by_memory = share is not None and share >= _NEAR_LIMIT
    if by_time and by_memory:
        return "time and memory"
    if by_time or by_memory:
        return "time" if by_time else "memory"
    return '<span class="quiet">neither</span>'


def decisions_section(result: PlanResult, load: LoadModel) -> str:
    """Why tables were replicated or cut; as many decisions as keep the page small."""
    if not result.decisions:
        note = "None were needed: every table lies whole on one rank."
        return _section("Decisions", note, "")
    rows: list[tuple[str, ...]] = []
    characters = 0
    for number, decision in enumerate(result.decisions[:_DECISIONS], start=1):
        characters += min(len(decision), _LONGEST)
        if characters > _DECISION_CHARACTERS:
            break
        table, text = _table_of(decision, load)
        name = escaped_name(table) if table else "\N{EN DASH}"
        rows.append(
            (
                _cell(f"{number:,}", number),
                f'<td class="name">{name}</td>',
                f'<td class="text">{_long(text)}</td>',
            )
        )
    note = "What was replicated or cut, in the order it was decided, and why."
    if len(rows) < len(result.decisions):
        note += f" These are the first {len(rows):,} of {len(result.decisions):,}."
    return _section("Decisions", note, _table("Decisions", ("#Step", "Table", "Decision"), rows))


def _table_of(decision: str, load: LoadModel) -> tuple[str, str]:
    """The table that a decision begins with, or nothing, and the rest of its text."""
    end = decision.find(": ")
    while end >= 0:
        if decision[:end] in load.uses:
            return decision[:end], decision[end + 2 :]
        end = decision.find(": ", end + 1)
    return "", decision


def _long(text: str) -> str:
    if len(text) <= _SHORT:
        return escaped(text)
    start = text[:_SHORT].rpartition(" ")[0] or text[:_SHORT]
    more = text[len(start) : _LONGEST]
    cut = "\N{HORIZONTAL ELLIPSIS}" if len(text) > _LONGEST else ""
    return (
        f"<details><summary>{escaped(start)} <span>\N{HORIZONTAL ELLIPSIS}</span></summary>"
        f"{escaped(more)}{cut}</details>"
    )


def _section(title: str, note: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n<p>{note}</p>\n{content}\n</section>"


def _table(label: str, heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table whose heads sort it; a head that begins with # is of numbers."""
    head = "".join(
        f'<th scope="col"{" class=n" if h.startswith("#") else ""}>'
        f'<button type="button">{h.removeprefix("#")}</button></th>'
        for h in heads
    )
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{label}" tabindex="0"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cell(text: str, value: float) -> str:
    return f'<td class="n" data-v="{value!r}">{text}</td>'
