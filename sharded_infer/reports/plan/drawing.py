"""The bars of a plan's page: one for each rank, with parts as wide as their time or bytes.

The last segment, "and N more", combines parts that are too thin to see or too many. The widths of a
bar's segments therefore always sum to the rank's load.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest

from kernels.wording import counted
from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.plan import Plan
from sharded_infer.planning.plan_result import PlanResult, figures_of
from sharded_infer.planning.table_use import table_uses
from sharded_infer.reports.html.text import escaped, escaped_name, time_text
from sharded_infer.reports.plan.rank_parts import (
    Kind,
    Part,
    RankParts,
    hottest_tables,
    parts_by_rank,
)
from sharded_infer.specs.model_spec import ModelSpec

_PARTS = 3000  # approximate number of segments in a drawing
_MOST, _LEAST = 60, 6  # bounds of the maximum number of segments in a bar
_THINNEST = 0.004  # minimum width of a segment, as a share of the longest bar
_LABELLED = 0.02  # minimum width with a label; the style sheet hides labels that do not fit
_SHORT_NAME = 7  # characters that fit into a narrow segment
_SLIM_RANKS = 24  # bars are thin for more ranks than this
_CLASSES = {Kind.WHOLE: "w", Kind.COLUMN: "c", Kind.ROW: "r", Kind.REPLICA: "e"}
_ENLARGED = 0.5  # share of the scale; if all bars are shorter, the drawing can be enlarged


@dataclass(frozen=True, slots=True)
class Measure:
    """The quantity that widths show; `key` is `seconds` or `bytes`."""

    key: str
    of_part: Callable[[Part], float]
    of_rank: Callable[[RankParts], float]
    text: Callable[[float], str]


TIME = Measure("seconds", lambda part: part.seconds, lambda rank: rank.seconds, time_text)
MEMORY = Measure("bytes", lambda part: part.bytes, lambda rank: rank.bytes, size_text)


class Drawing:
    """The parts of all ranks by one measure.

    `load` made the plan, `hot` numbers the hottest tables, and `bound` is the value of a line
    through all bars; None draws none.
    """

    def __init__(
        self,
        measure: Measure,
        ranks: Sequence[RankParts],
        load: CostModel,
        hot: dict[str, int],
        bound: float | None = None,
    ) -> None:
        self._measure = measure
        self._ranks = ranks
        self._load = load
        self._hot = hot
        self._bound = bound
        self._numbers = {name: number for number, name in enumerate(load.uses)}
        self._most = min(_MOST, max(_LEAST, _PARTS // len(ranks)))
        self._longest = max(measure.of_rank(rank) for rank in ranks)
        limits = [limit for rank in ranks if (limit := self._limit(rank)) is not None]
        self._full = max([self._longest, bound or 0.0, *limits]) or 1.0

    def figure(self, title: str, caption: str) -> str:
        """The drawing as HTML; `caption` is a sentence below the heading, as HTML."""
        slim = " slim" if len(self._ranks) > _SLIM_RANKS else ""
        share = self._longest / self._full
        enlarged = 0 < share < _ENLARGED
        control = (
            '<label class="zoom"><input type="checkbox"> Enlarge to what is used</label>'
            if enlarged
            else ""
        )
        axes = _axis("full", self._full, self._measure)
        if enlarged:
            axes += _axis("near", self._longest, self._measure)
        # Equal devices have the same replicas, so the candidates for drawing are found once.
        heads = {rank.device: self._head(rank.replicas) for rank in self._ranks}
        bars = "\n".join(self._bar(rank, heads[rank.device]) for rank in self._ranks)
        return (
            f'<figure id="{self._measure.key}" class="drawing{slim}" data-full="{self._full!r}" '
            f'style="--zoom:{1 / share if enlarged else 1:.6g}">\n'
            f"<figcaption><h2>{title}</h2><p>{caption}</p>{control}</figcaption>\n"
            f"{self._marks()}<ol>\n{bars}\n</ol>\n{axes}</figure>"
        )

    def _limit(self, rank: RankParts) -> int | None:
        return rank.device.memory_bytes if self._measure is MEMORY else None

    def _head(self, parts: Sequence[Part]) -> list[Part]:
        largest = nlargest(self._most, parts, key=self._measure.of_part)
        shown = {part.table for part in largest}
        hot = [p for p in parts if p.table in self._hot and p.table not in shown]
        return [*largest, *hot]

    def _marks(self) -> str:
        if self._bound is not None:
            return self._mark("bound", self._bound, f"bound {self._measure.text(self._bound)}")
        limits = {self._limit(rank) for rank in self._ranks} - {None}
        if len(limits) != 1:
            return ""
        (limit,) = limits
        return self._mark("limit", limit or 0, f"limit {self._measure.text(limit or 0)}")

    def _mark(self, name: str, value: float, text: str) -> str:
        place = 100 * value / self._full
        side = f"right:{100 - place:.4f}%" if place > 50 else f"left:{place:.4f}%"
        return f'<p class="mark {name}"><span style="{side}">{text}</span></p>\n'

    def _bar(self, rank: RankParts, replicas: Sequence[Part]) -> str:
        total = self._measure.text(self._measure.of_rank(rank))
        parts = counted(rank.count, "part", ",")
        inner = "".join(self._segments(rank, replicas))
        return (
            f'<li><span class="rank">{rank.rank}</span>'
            f'<div class="bar" role="group" aria-label="rank {rank.rank}: {total}, {parts}">'
            f'<div class="fill">{self._lines(rank)}{inner}</div></div>'
            f'<span class="value">{total}</span></li>'
        )

    def _lines(self, rank: RankParts) -> str:
        lines = ""
        if self._bound is not None:
            lines += self._line(self._bound)
        if (limit := self._limit(rank)) is not None:
            lines += f'<s class="room" style="width:{100 * limit / self._full:.4f}%"></s>'
            lines += self._line(limit)
        return lines

    def _line(self, value: float) -> str:
        return f'<s class="line" style="left:{100 * value / self._full:.4f}%"></s>'

    def _segments(self, rank: RankParts, replicas: Sequence[Part]) -> list[str]:
        value = self._measure.of_part
        shown, left = self._choose(rank, replicas)
        order = list(_CLASSES)
        shown.sort(key=lambda part: (order.index(part.kind), -value(part), part.table))
        rest = self._measure.of_rank(rank) - sum(map(value, shown))
        segments = []
        if self._measure is TIME and rank.launch_seconds:
            rest -= rank.launch_seconds
            label = f"fixed cost of a call\n{time_text(rank.launch_seconds)}, whatever it looks up"
            segments.append(self._segment("f", rank.launch_seconds, label, "", None))
        segments += [self._of_part(part, rank) for part in shown]
        if left:
            count, rest = left.total(), max(0.0, rest)
            kinds = ", ".join(counted(n, kind, ",") for kind, n in sorted(left.items()))
            css = _CLASSES[next(iter(left))] if len(left) == 1 else "m"
            label = f"and {count:,} more\n{kinds}\n{self._measure.text(rest)} together"
            segments.append(self._segment(css, rest, label, f"and {count:,} more", None))
        if segments:
            # The tab key stops once at each bar; arrow keys move along it.
            segments[0] = segments[0].replace('tabindex="-1"', 'tabindex="0"', 1)
        return segments

    def _choose(
        self, rank: RankParts, replicas: Sequence[Part]
    ) -> tuple[list[Part], Counter[Kind]]:
        value = self._measure.of_part
        candidates = [*rank.own, *replicas]
        largest = nlargest(self._most, candidates, key=value)
        shown = [part for part in largest if value(part) >= _THINNEST * self._longest]
        drawn = set(map(id, shown))
        shown += [p for p in candidates if p.table in self._hot and id(p) not in drawn]
        left = Counter(part.kind for part in rank.own)
        left[Kind.REPLICA] += len(rank.replicas)
        left.subtract(Counter(part.kind for part in shown))
        return shown, +left

    def _of_part(self, part: Part, rank: RankParts) -> str:
        number = self._hot.get(part.table)
        lines = [part.table, self._shape(part)]
        share = part.bytes / rank.bytes if rank.bytes else 0.0
        held = f"{share:.1%} of what rank {rank.rank} holds"
        lines.append(f"{part.bytes:,} bytes ({size_text(part.bytes)}), {held}")
        share = part.seconds / rank.seconds if rank.seconds else 0.0
        lines.append(f"{time_text(part.seconds)}, {share:.1%} of the time of rank {rank.rank}")
        if number is not None:
            lines.append(f"number {number} of the hottest tables")
        css = _CLASSES[part.kind]
        return self._segment(
            css, self._measure.of_part(part), "\n".join(lines), part.table, part.table
        )

    def _shape(self, part: Part) -> str:
        table = self._load.uses[part.table].table
        rows = _span("rows", part.rows, table.rows)
        columns = _span("columns", part.columns, table.dim)
        both = part.kind is Kind.ROW and len(part.columns) < table.dim
        kind = "row and column shard" if both else str(part.kind)
        return f"{kind}, {table.row_format}\n{rows}; {columns}"

    def _segment(self, css: str, value: float, label: str, name: str, table: str | None) -> str:
        number = self._hot.get(table) if table is not None else None
        which = f' data-t="{self._numbers[table]}"' if table is not None else ""
        hot = number is not None
        labelled = bool(name) and (hot or value >= _LABELLED * self._longest)
        badge = f"<b>{number}</b>" if hot else ""
        text = f"<span>{badge}<em>{escaped_name(name)}</em></span>" if labelled else ""
        css += " hot" * hot + " l" * labelled + " long" * (labelled and len(name) > _SHORT_NAME)
        first, _, others = label.partition("\n")
        return (
            f'<i class="{css}" style="width:{100 * value / self._full:.4f}%"{which} role="img" '
            f'tabindex="-1" aria-label="{escaped_name(first)}\n{escaped(others)}">{text}</i>'
        )


def _span(what: str, part: range, whole: int) -> str:
    if len(part) == whole:
        return f"all {whole:,} {what}"
    return f"{what} {part.start:,} to {part.stop:,} of {whole:,}"


def _axis(name: str, full: float, measure: Measure) -> str:
    if full <= 0:
        return ""
    step = _step(full)
    ticks = []
    for index in range(int(full / step * (1 + 1e-9)) + 1):
        place = 100 * index * step / full
        text = measure.text(index * step).replace(".0 ", " ").replace(".00 ", " ")
        ticks.append(f'<span style="left:{place:.4f}%">{text if index else "0"}</span>')
    return f'<p class="axis {name}" aria-hidden="true">{"".join(ticks)}</p>\n'


def _step(full: float) -> float:
    """A round distance of ticks that gives at most five."""
    power = 10 ** math.floor(math.log10(full / 5))
    return float(next(f * power for f in (1, 2, 5, 10, 20) if full / (f * power) <= 5))


def render_plan_figures(plan: Plan, spec: ModelSpec) -> str:
    """Two HTML figures of a plan's time and memory; style `style.DRAWING_STYLE`."""
    load = CostModel({use.table.name: use for use in table_uses(spec)}, plan.topology)
    # The bound is unknown here, because only the planner computes it.
    result = PlanResult(plan, figures_of(plan, load), bound_seconds=0.0, decisions=())
    ranks = parts_by_rank(result, load)
    hot = {table.table: number for number, table in enumerate(hottest_tables(ranks), start=1)}
    caption = f"Predicted for a batch of {load.batch:,}. The slowest rank sets the latency."
    memory = "Bytes of tables that each rank holds."
    return "\n".join(
        (
            Drawing(TIME, ranks, load, hot).figure("Time", caption),
            Drawing(MEMORY, ranks, load, hot).figure("Memory", memory),
        )
    )
