"""A plan as one self-contained HTML page: placement, costs and reasons."""

from collections import Counter
from collections.abc import Sequence

from kernels.wording import counted
from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.reports.html.document import report_page
from sharded_infer.reports.html.text import escaped_name, time_text
from sharded_infer.reports.plan.drawing import MEMORY, TIME, Drawing
from sharded_infer.reports.plan.hosts import hosts_section
from sharded_infer.reports.plan.rank_parts import Kind, RankParts, hottest_tables, parts_by_rank
from sharded_infer.reports.plan.style import DRAWING_STYLE, TIP_SCRIPT
from sharded_infer.reports.plan.tables import decisions_section, devices_section, hottest_section

_KINDS = {
    Kind.WHOLE: ("w", "whole table"),
    Kind.COLUMN: ("c", "column shard"),
    Kind.ROW: ("r", "row shard"),
    Kind.REPLICA: ("e", "replicated table"),
}


def render_plan_page(result: PlanResult, load: CostModel) -> str:
    """A page that explains a plan, made with `load`, to an engineer."""
    ranks = parts_by_rank(result, load)
    hottest = hottest_tables(ranks)
    hot = {table.table: number for number, table in enumerate(hottest, start=1)}
    # With a front, the bound is one of the whole request.
    bound = result.bound_seconds if load.topology.front is None else None
    time = Drawing(TIME, ranks, load, hot, bound=bound).figure("Time", _time_caption(load))
    memory = Drawing(MEMORY, ranks, load, hot).figure("Memory", _memory_caption(ranks))
    return report_page(
        title=f"Plan for {escaped_name(result.plan.topology.name)}",
        summary=[_summary(result, load)],
        figures=_figures(result, load),
        sections=[
            _legend(ranks, time + memory),
            time,
            memory,
            hosts_section(result, load),
            hottest_section(hottest, load),
            devices_section(ranks, result),
            decisions_section(result, load),
            '<div id="tip" aria-hidden="true" hidden></div>',
        ],
        style=DRAWING_STYLE,
        script=TIP_SCRIPT,
    )


def _summary(result: PlanResult, load: CostModel) -> str:
    ranks = len(result.figures.seconds)
    what = "The slowest takes" if load.topology.front is None else "Lookups take"
    return (
        f"{counted(len(load.uses), 'table', ',')} on {counted(ranks, 'rank', ',')}. {what} "
        f"<b>{time_text(result.figures.request_seconds)}</b> for a batch of {load.batch:,}, "
        f"{_gap(result)} the bound that no plan can beat."
    )


def _gap(result: PlanResult) -> str:
    return f"<b>{result.gap:.1%}</b> above" if result.gap >= 0.0005 else "at"


def _figures(result: PlanResult, load: CostModel) -> tuple[tuple[str, str], ...]:
    figures = result.figures
    mean = sum(figures.bytes) / len(figures.bytes)
    return (
        ("Ranks", f"{len(figures.seconds):,}"),
        ("Tables", f"{len(load.uses):,}"),
        ("Batch", f"{load.batch:,}"),
        ("Slowest rank", time_text(figures.max_seconds)),
        *_front_figures(result, load),
        ("Bound", time_text(result.bound_seconds)),
        ("Gap", f"{result.gap:.1%}"),
        ("Memory, fullest", size_text(max(figures.bytes))),
        ("Memory, mean", size_text(mean)),
        ("Fullest to mean", f"{figures.memory_imbalance:.2f} \N{MULTIPLICATION SIGN}"),
    )


def _front_figures(result: PlanResult, load: CostModel) -> list[tuple[str, str]]:
    if load.topology.front is None:
        return []
    figures = result.figures
    return [
        ("Front, for hosts", time_text(figures.front_seconds)),
        ("Request", time_text(figures.request_seconds)),
    ]


def _time_caption(load: CostModel) -> str:
    if load.topology.front is None:
        return "Each rank's part of a batch. The slowest rank sets the latency."
    return (
        "Each rank's part of a batch, with the round trip to its host. The slowest rank and the "
        "front's time for hosts set the latency."
    )


def _legend(ranks: Sequence[RankParts], drawn: str) -> str:
    counts = Counter(part.kind for rank in ranks for part in rank.own)
    counts[Kind.REPLICA] = max(len(rank.replicas) for rank in ranks)
    items = [
        f'<li><i class="{css}"></i>{counted(counts[kind], words, ",")}</li>'
        for kind, (css, words) in _KINDS.items()
        if counts[kind]
    ]
    # Names are escaped, so only segments contain these tags.
    if '<i class="m' in drawn:
        items.append('<li><i class="m"></i>several kinds</li>')
    if '<i class="f' in drawn:
        items.append('<li><i class="f"></i>fixed cost of a call</li>')
    if "<b>1</b>" in drawn:
        items.append('<li><i class="w hot"><b>1</b></i>hottest tables, numbered</li>')
    return f'<ul class="legend" aria-label="Colours">{"".join(items)}</ul>'


def _memory_caption(ranks: Sequence[RankParts]) -> str:
    limits = {rank.device.memory_bytes for rank in ranks}
    if limits == {None}:
        return "Bytes of tables that each rank holds. No device has a limit."
    some = " Devices without one have no limit." if None in limits else ""
    return f"Bytes of tables that each rank holds; a line is the most that it may hold.{some}"
