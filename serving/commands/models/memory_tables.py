"""Tables of the rows that memory holds, with the others on a disk."""

from collections.abc import Mapping, Sequence

from kernels.wording import counted
from serving.commands.console import OUT, figure_table, say
from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.memory_budget import KeptRows, divide_memory
from sharded_infer.planning.table_use import TableUse
from sharded_infer.planning.topology import Disk

_SHOWN = 12  # tables on the terminal; files have all
# Of --memory-budget, for --explain.
_SHARES_OF_BUDGET = (0.25, 0.5, 1, 2, 4, 8)


def print_kept_rows(
    kept: Sequence[KeptRows],
    uses: Mapping[str, TableUse],
    samples_per_second: float,
    disk: Disk | None = None,
) -> None:
    """Print the rows of each table in memory, with the others on a disk if that is known."""
    title = f"rows in {size_text(sum(one.bytes for one in kept))} of memory"
    headings = ("table", "rows", "of all", "memory", "hit rate", "reads/s", "hits by pages")
    table = figure_table(title, headings, left=("table",))
    ordered = sorted(kept, key=lambda one: -one.reads)
    for one in ordered[:_SHOWN]:
        table.add_row(
            one.table,
            f"{one.rows:,}",
            f"{one.rows / uses[one.table].table.rows:.1%}",
            size_text(one.bytes),
            f"{one.hit_rate:.1%}",
            f"{one.reads * samples_per_second:,.0f}",
            f"{one.page_hit_rate:.1%}",
        )
    OUT.print(table)
    hit_rate, by_pages, reads = _over_all(kept)
    known = sum(any(f.zipf is not None or f.histogram for f in u.features) for u in uses.values())
    say(
        f"all {counted(len(kept), 'table')}: hit rate {hit_rate:.1%}, by pages {by_pages:.1%}, "
        f"{reads * samples_per_second:,.0f} rows a second from elsewhere at "
        f"{samples_per_second:,.0f} samples a second; skew is known of {known}, others count as "
        "evenly used"
    )
    if disk is not None:
        asked = reads * samples_per_second
        say(
            f"the disk reads {disk.reads_per_second:,.0f} rows a second: these are "
            f"{asked / disk.reads_per_second:.0%} of them; a batch waits for its rows for "
            f"{disk.read_seconds * 1e6:,.0f} us at least"
        )


def print_budgets(
    uses: Mapping[str, TableUse], memory_bytes: int, samples_per_second: float
) -> None:
    """Print what a part of a memory, and multiples of it, would hold over all tables."""
    headings = ("memory", "of all rows", "hit rate", "by pages", "reads/s", "fewer reads/GB")
    table = figure_table("what memory buys", headings)
    stored = sum(use.table.rows * use.table.row_bytes for use in uses.values())
    before: tuple[int, float] | None = None
    for share in _SHARES_OF_BUDGET:
        budget = min(stored, int(memory_bytes * share))
        if before is not None and budget == before[0]:
            break
        kept = divide_memory(uses.values(), budget)
        hit_rate, by_pages, reads_of_sample = _over_all(kept)
        reads = reads_of_sample * samples_per_second
        saved = "" if before is None else f"{(before[1] - reads) / (budget - before[0]) * 1e9:,.0f}"
        table.add_row(
            size_text(budget),
            f"{budget / stored:.1%}",
            f"{hit_rate:.1%}",
            f"{by_pages:.1%}",
            f"{reads:,.0f}",
            saved,
        )
        before = budget, reads
    OUT.print(table)


def _over_all(kept: Sequence[KeptRows]) -> tuple[float, float, float]:
    """Hit rates of rows and of pages over all tables, and reads a sample."""
    ids = sum(one.ids for one in kept)
    reads = sum(one.reads for one in kept)
    if not ids:
        return 1.0, 1.0, reads
    return 1 - reads / ids, sum(one.ids * one.page_hit_rate for one in kept) / ids, reads
