"""Runs the demo and prints its figures."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from serving.commands.console import (
    OUT,
    JsonFileOption,
    check_target,
    progress_bars,
    say,
    write_json,
)
from serving.demo.run import run_demo
from serving.demo.scoring import DemoOptions, DemoResult, LatencyMs
from serving.demo.sequences.run import run_sequence_demo
from sharded_infer.byte_sizes import size_text

# Set where a display exists; `webbrowser` runs BROWSER.
_DISPLAYS = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


class DemoModel(StrEnum):
    """Architectures that the demo trains."""

    DLRM = "dlrm"
    DIN = "din"
    SASREC = "sasrec"
    BST = "bst"
    HSTU = "hstu"


def demo_command(
    model: Annotated[
        DemoModel,
        typer.Option(help="What to train: a DLRM on clicks, or a model of histories on ratings."),
    ] = DemoModel.DLRM,
    data: Annotated[
        Path | None, typer.Option(help="Click log in Criteo's format; default: generate one.")
    ] = None,
    ratings: Annotated[
        Path | None,
        typer.Option(help="MovieLens's ratings.dat or ratings.csv; default: generate one."),
    ] = None,
    rows: Annotated[
        int, typer.Option(help="Rows to generate, or the most rows to read.", min=10)
    ] = 20000,
    repository: Annotated[
        Path | None,
        typer.Option("--repository", "-r", help="Where to publish; default: temporary."),
    ] = None,
    port: Annotated[int, typer.Option(help="The server's gRPC port; 0: any.")] = 0,
    hosts: Annotated[
        int | None,
        typer.Option(
            help="Shard hosts that have the tables, a process each; default: the server has them.",
            min=2,
            max=5,
        ),
    ] = None,
    raw_ids: Annotated[
        bool,
        typer.Option(
            "--raw-ids",
            help="Send the log's own strings, which the server hashes and maps to rows.",
        ),
    ] = False,
    json_file: JsonFileOption = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave what serves running.")] = False,
    browser: Annotated[
        bool | None,
        typer.Option(
            "--browser/--no-browser",
            help="Open the live page in a browser; default: from a terminal on a display.",
        ),
    ] = None,
) -> None:
    """Train a model on logs, publish, serve and score it.

    With --hosts, the same requests also go to one process, and again after a replica was killed:
    the scores must be equal, to the bit.

    With --raw-ids, tables have id maps of the categories that were trained on. The server must
    count exactly the others as unknown ids.

    With --model din, sasrec, bst or hstu, the model scores items by a user's history of ratings.
    Requests with one history and many candidates go to a server without the user cache, and twice
    to one with it: the server must count hits, and the scores must be equal, to the bit.

    Exit code 0 only if every step held and the served scores rank as well as the fp32 model's.
    """
    check_target(json_file)
    others, refused = "din, sasrec, bst or hstu", {"--ratings": ratings is not None}
    if model is not DemoModel.DLRM:
        others = "dlrm"
        refused = {"--data": data is not None, "--hosts": hosts is not None, "--raw-ids": raw_ids}
    if wrong := [option for option, is_used in refused.items() if is_used]:
        raise typer.BadParameter(f"{wrong[0]} is for --model {others}, got {model.value}")
    shows_page = opens_page(browser, os.environ, is_terminal=sys.stdout.isatty())

    def on_serving(metrics_url: str) -> None:
        page = metrics_url.removesuffix("metrics")
        say(f"live page: {page}")
        if shows_page:
            _open_page(page)

    with progress_bars() as progress:
        options = DemoOptions(rows, repository, port, keep, on_serving, progress)
        if model is DemoModel.DLRM:
            result = run_demo(options, data=data, hosts=hosts, raw_ids=raw_ids)
        else:
            result = run_sequence_demo(options, model.value, ratings=ratings)
    _print_demo(result)
    write_json(json_file, asdict(result))


def opens_page(wanted: bool | None, variables: Mapping[str, str], *, is_terminal: bool) -> bool:
    """True if the user wants a browser, or has no preference, a terminal and a display."""
    if wanted is not None:
        return wanted
    return is_terminal and any(variables.get(name) for name in _DISPLAYS)


def _open_page(page: str) -> None:
    # A separate process: browsers write to the terminal, and some end only when they are closed.
    words, silent = (sys.executable, "-P", "-m", "webbrowser", page), subprocess.DEVNULL
    streams = {"stdin": silent, "stdout": silent, "stderr": silent, "start_new_session": True}
    threading.Thread(
        target=subprocess.run, args=(words,), kwargs=streams, name="browser", daemon=True
    ).start()


def _print_demo(result: DemoResult) -> None:
    ratio = result.artifact_table_bytes / result.fp32_bytes
    rows = [("rows trained on / scored", f"{result.training_rows:,} / {result.scored_rows:,}")]
    if result.auc_popularity is not None:
        rows.append(("AUC, popularity", f"{result.auc_popularity:.4f}"))
    rows += [
        ("AUC, fp32 model", f"{result.auc_fp32:.4f}"),
        ("AUC, served scores", f"{result.auc_served:.4f}"),
        ("largest score difference", f"{result.max_abs_score_diff:.2g}"),
        ("tables, fp32", size_text(result.fp32_bytes)),
        ("tables, published", f"{size_text(result.artifact_table_bytes)} ({ratio:.1%})"),
        ("requests", f"{result.requests:,}"),
        ("pairs a second, one client", f"{result.pairs_per_second:,.0f}"),
        ("latency p50 / p95 / p99", _latency_text(result.latency_ms)),
    ]
    if raw := result.raw_ids:
        share = raw.unknown / max(raw.ids, 1)
        rows += [
            ("raw ids", f"strings, hashed by {raw.hash}"),
            ("raw ids sent / unknown", f"{raw.ids:,} / {raw.unknown:,} ({share:.1%})"),
        ]
    if hosts := result.hosts:
        rows += [
            ("the same, in one process", _latency_text(hosts.one_process_latency_ms)),
            ("the same, a replica killed", _latency_text(hosts.latency_after_loss_ms)),
            ("scores of all three", "equal, to the bit"),
            ("tables of the shard hosts", ", ".join(map(size_text, hosts.table_bytes))),
        ]
    if ranking := result.ranking:
        rows += [
            ("ranking requests", f"{ranking.requests:,}, of {ranking.candidates:,} candidates"),
            ("latency p50 / p95 / p99", _latency_text(ranking.latency_ms)),
            ("the same, user cached", _latency_text(ranking.hit_latency_ms)),
            ("user cache, misses then hits", f"{ranking.misses:,}, {ranking.hits:,}"),
            ("scores of all three", "equal, to the bit"),
        ]
    rows += [
        ("gRPC", result.grpc_url),
        ("live page", result.metrics_url.removesuffix("metrics")),
        ("metrics", result.metrics_url),
    ]
    table = Table(title="sharded-infer demo", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    OUT.print(table)
    if result.server_pid is None:
        say("the server has been stopped; --keep leaves it running")
    elif result.hosts is None:
        say(f"the server is running: kill {result.server_pid} stops it")
    else:
        pids = " ".join(map(str, (result.server_pid, *result.hosts.process_ids)))
        say(f"the processes are running: kill {pids} stops them")


def _latency_text(latency: LatencyMs) -> str:
    return f"{latency.p50:.2f} / {latency.p95:.2f} / {latency.p99:.2f} ms"
