"""Plans a model without publishing it, and explains the plan."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.table import Table

from kernels.wording import counted
from serving.commands.console import OUT, check_target, figure_table, say, write_json, write_target
from serving.commands.models.memory_tables import print_budgets, print_kept_rows
from serving.commands.models.quantization import counted_statistics
from sharded_infer.byte_sizes import parse_size, size_text
from sharded_infer.errors import InputError
from sharded_infer.planning.cost_model import DEFAULT_BATCH, CostModel
from sharded_infer.planning.memory_budget import divide_memory
from sharded_infer.planning.plan_moves import Move, moves_between
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.replanner import replan
from sharded_infer.planning.table_use import table_uses
from sharded_infer.planning.topology_file import disk_of, parse_topology
from sharded_infer.reports.plan.figures import (
    host_reports,
    rank_reports,
    read_report,
    report_fields,
)
from sharded_infer.reports.plan.hosts import network_words, shows_hosts
from sharded_infer.reports.plan.page import render_plan_page
from sharded_infer.specs.spec_file import load_spec

_SHOWN = 12  # decisions and moves on the terminal; files have all


def plan_command(
    spec: Annotated[Path | None, typer.Option(help="The model's description, model.toml.")] = None,
    topology: Annotated[
        str, typer.Option(help="cpu:2, h100:8x70GB+cpu:1x512GB, a .toml file, or local.")
    ] = "local",
    samples: Annotated[
        Path | None,
        typer.Option(help="Samples (JSON, .csv, .tsv, .parquet) to count statistics from."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples of a batch.", min=1)] = DEFAULT_BATCH,
    from_plan: Annotated[
        Path | None, typer.Option(help="A plan's --json file: change that plan, moving few bytes.")
    ] = None,
    max_move: Annotated[
        str | None,
        typer.Option(
            help="With --from-plan: bytes that may move beyond those that must, such as 20GB."
        ),
    ] = None,
    lost_rank: Annotated[
        list[int] | None, typer.Option(help="With --from-plan: a lost rank; may be repeated.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Two plans' --json files: show the differences."),
    ] = None,
    memory_budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Say what so much memory for rows would hold, such as 8GB, with the rest on disk.",
        ),
    ] = None,
    samples_per_second: Annotated[
        float, typer.Option(help="With --memory-budget: samples that are scored.", min=0)
    ] = 1000.0,
    explain: Annotated[
        bool, typer.Option(help="With --memory-budget: say what less and more memory would hold.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the plan and its figures to this file; -: print them as the last line.",
        ),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page that draws the plan.")
    ] = None,
) -> None:
    """Plan where every table goes, and explain it. Needs no weights and no device.

    Prints each device's tables, memory, time and binding constraint, and why tables were split or
    replicated. Compares the slowest device with the lower bound.

    With --memory-budget it divides the memory over the tables, and says for each how many ids find
    their rows there, how many rows a second are read from elsewhere, and how many ids find theirs
    with the page cache alone.
    """
    check_target(json_file)
    check_target(html_file)
    if compare is not None:
        _compare(*compare)
        return
    if spec is None:
        raise InputError("expected --spec, or --compare with two plans")
    described = load_spec(spec)
    counted = counted_statistics(described, samples, spec.parent)
    uses = {use.table.name: use for use in table_uses(described, counted)}
    budget = _budget(memory_budget, explain=explain)
    kept = () if budget is None else divide_memory(uses.values(), budget)
    load = CostModel(uses, parse_topology(topology), batch)
    moves: tuple[Move, ...] = ()
    started = perf_counter()
    if from_plan is None:
        if max_move is not None or lost_rank:
            raise InputError("--max-move and --lost-rank need --from-plan")
        result = make_plan(load)
    else:
        again = replan(
            load,
            read_report(from_plan)[0],
            max_move_bytes=None if max_move is None else parse_size(max_move, "--max-move"),
            lost_ranks=lost_rank or (),
        )
        result, moves = again.result, again.moves
    planning_seconds = perf_counter() - started
    _print(result, load)
    OUT.print(f"planned in {planning_seconds:.2g} s", highlight=False)
    if from_plan is not None:
        _print_moves(moves)
    if budget is not None:
        print_kept_rows(kept, uses, samples_per_second, disk_of(topology))
        if explain:
            print_budgets(uses, budget, samples_per_second)
    fields = report_fields(result, load, moves) | {"planning_seconds": planning_seconds}
    if kept:
        fields["memory_budget"] = [
            {**asdict(one), "reads_per_second": one.reads * samples_per_second} for one in kept
        ]
    write_json(json_file, fields)
    if html_file is not None:
        write_target(html_file, render_plan_page(result, load))


def _budget(memory_budget: str | None, *, explain: bool) -> int | None:
    if memory_budget is None:
        if explain:
            raise InputError("--explain: expected --memory-budget beside it")
        return None
    return parse_size(memory_budget, "--memory-budget")


def _print(result: PlanResult, load: CostModel) -> None:
    has_maps = any(result.figures.map_bytes)
    maps = ("of id maps",) if has_maps else ()
    headings = ("rank", "device", "tables", "memory", *maps, "share", "time", "bound by")
    table = figure_table(f"plan for {load.topology.name}", headings, left=("device", "bound by"))
    for report in rank_reports(result):
        table.add_row(
            str(report.rank),
            report.kind,
            str(report.tables),
            size_text(report.bytes),
            *((size_text(report.map_bytes),) if has_maps else ()),
            "" if report.memory_share is None else f"{report.memory_share:.1%}",
            f"{report.seconds * 1e6:.1f} us",
            report.binding,
        )
    OUT.print(table)
    figures = result.figures
    if shows_hosts(load):
        OUT.print(_hosts_table(result, load))
        say(network_words(result, load))
    what = "slowest rank" if load.topology.front is None else "a request"
    seconds, bound = figures.request_seconds, result.bound_seconds
    say(
        f"{counted(len(load.uses), 'table')}, batches of {load.batch}: {what} "
        f"{seconds * 1e6:.1f} us, no plan beats {bound * 1e6:.1f} us "
        f"(gap {result.gap:.2%}); memory max/mean {figures.memory_imbalance:.3f}"
    )
    _print_some(result.decisions)


def _hosts_table(result: PlanResult, load: CostModel) -> Table:
    headings = ("host", "role", "tables", "memory", "sent", "received", "time", "of request")
    table = figure_table("hosts", headings, left=("role",))
    for report in host_reports(result, load):
        is_front = report.role == "front"
        table.add_row(
            str(report.host),
            report.role,
            str(report.tables),
            size_text(report.bytes),
            "" if is_front else size_text(report.sent_bytes),
            "" if is_front else size_text(report.received_bytes),
            f"{report.seconds * 1e6:.1f} us",
            f"{report.share:.1%}",
        )
    return table


def _print_moves(moves: tuple[Move, ...]) -> None:
    total = sum(move.bytes for move in moves)
    say(f"moves {size_text(total)} in all")
    _print_some([f"{m.table}: {size_text(m.bytes)} to rank {m.rank}" for m in moves])


def _print_some(lines: tuple[str, ...] | list[str]) -> None:
    for line in lines[:_SHOWN]:
        say(f"- {line}")
    if len(lines) > _SHOWN:
        say(f"- and {len(lines) - _SHOWN} more (--json has all)")


def _compare(first: Path, second: Path) -> None:
    old, old_tables = read_report(first)
    new, tables = read_report(second)
    headings = ("rank", "held before", "held after", "to receive")
    table = figure_table(f"{first.name} -> {second.name}", headings)
    moves = moves_between(old, new, tables)
    before, after = old.bytes_by_rank(old_tables), new.bytes_by_rank(tables)
    for rank in range(max(len(before), len(after))):
        received = sum(move.bytes for move in moves if move.rank == rank)
        table.add_row(
            str(rank),
            size_text(before[rank]) if rank < len(before) else "",
            size_text(after[rank]) if rank < len(after) else "gone",
            size_text(received),
        )
    OUT.print(table)
    _print_moves(tuple(moves))
