"""The tables of a plan's page: the hottest tables, the devices and the decisions."""

from collections.abc import Sequence

from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.reports.html.document import section
from sharded_infer.reports.html.table import LONGEST_TEXT, long_text, number_cell, sortable_table
from sharded_infer.reports.html.text import escaped, escaped_name, time_text
from sharded_infer.reports.plan.rank_parts import HotTable, RankParts

_NEAR_SLOWEST = 0.98  # of the slowest rank's time: such a rank is bound by time
_NEAR_LIMIT = 0.95  # of a device's memory: such a rank is bound by memory
_DECISIONS = 1000
_DECISION_CHARACTERS = 400_000  # maximum for all decisions together


def hottest_section(hottest: Sequence[HotTable], load: CostModel) -> str:
    """The tables with the largest share of the time; empty if no time is spent."""
    if not hottest:
        return ""
    rows = []
    for number, hot in enumerate(hottest, start=1):
        use = load.uses[hot.table]
        rows.append(
            (
                number_cell(f"<b>{number}</b>", number),
                f'<th scope="row" class="name">{escaped_name(hot.table)}</th>',
                number_cell(f"{hot.share:.1%}", hot.share),
                number_cell(time_text(hot.seconds), hot.seconds),
                number_cell(f"{use.pooling_factor:,.3g}", use.pooling_factor),
                number_cell(size_text(use.table.stored_bytes), use.table.stored_bytes),
                f'<td class="keep">{hot.where}</td>',
            )
        )
    heads = ("#No.", "Table", "#Share of time", "#Time", "#Ids a sample", "#Stored", "Layout")
    note = "Where the time goes: over all ranks, without the fixed cost of a call."
    return section("Hottest tables", note, sortable_table("Hottest tables", heads, rows))


def devices_section(ranks: Sequence[RankParts], result: PlanResult) -> str:
    """The contents, costs and binding limit of each device."""
    slowest = result.figures.max_seconds
    rows = []
    for rank, share in zip(ranks, result.figures.shares, strict=True):
        limit = rank.device.memory_bytes
        rows.append(
            (
                f'<th scope="row" class="n" data-v="{rank.rank}">{rank.rank}</th>',
                f'<td class="keep">{escaped(rank.device.kind)}, host {rank.device.host}</td>',
                number_cell(f"{rank.tables:,}", rank.tables),
                number_cell(size_text(rank.bytes), rank.bytes),
                number_cell("no limit" if limit is None else size_text(limit), limit or 0),
                number_cell("" if share is None else f"{share:.1%}", share or 0),
                number_cell(time_text(rank.seconds), rank.seconds),
                number_cell(f"{rank.seconds / slowest:.1%}" if slowest else "", rank.seconds),
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
    return section("Devices", note, sortable_table("Devices", heads, rows))


def _binding(rank: RankParts, share: float | None, slowest: float) -> str:
    by_time = bool(rank.count) and rank.seconds >= _NEAR_SLOWEST * slowest
    by_memory = share is not None and share >= _NEAR_LIMIT
    if by_time and by_memory:
        return "time and memory"
    if by_time or by_memory:
        return "time" if by_time else "memory"
    return '<span class="quiet">neither</span>'


def decisions_section(result: PlanResult, load: CostModel) -> str:
    """Reasons of replicas and splits; the first decisions only, if there are many."""
    if not result.decisions:
        note = "None were needed: every table lies whole on one rank."
        return section("Decisions", note, "")
    rows: list[tuple[str, ...]] = []
    characters = 0
    for number, decision in enumerate(result.decisions[:_DECISIONS], start=1):
        characters += min(len(decision), LONGEST_TEXT)
        if characters > _DECISION_CHARACTERS:
            break
        table, text = _table_of(decision, load)
        name = escaped_name(table) if table else "\N{EN DASH}"
        rows.append(
            (
                number_cell(f"{number:,}", number),
                f'<td class="name">{name}</td>',
                f'<td class="text">{long_text(text)}</td>',
            )
        )
    note = "What was kept, replicated or cut, and why."
    if len(rows) < len(result.decisions):
        note += f" These are the first {len(rows):,} of {len(result.decisions):,}."
    return section(
        "Decisions", note, sortable_table("Decisions", ("#Step", "Table", "Decision"), rows)
    )


def _table_of(decision: str, load: CostModel) -> tuple[str, str]:
    end = decision.find(": ")
    while end >= 0:
        if decision[:end] in load.uses:
            return decision[:end], decision[end + 2 :]
        end = decision.find(": ", end + 1)
    return "", decision
