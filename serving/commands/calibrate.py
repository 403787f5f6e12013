"""Measures this machine for the planner."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from serving.commands.console import OUT, check_target, print_json, write_target
from serving.commands.lazy_group import load_by_name
from serving.commands.options.json_option import JsonOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.planning.topology_file import MAX_RANKS


def calibrate_command(
    out: Annotated[Path, typer.Option(help="Topology file to write.")] = Path("topology.toml"),
    ranks: Annotated[int, typer.Option(help="CPU ranks in it.", min=1, max=MAX_RANKS)] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine's constants for the planner, into a topology file for --topology.

    Takes about 15 seconds and 1.1 GiB on one thread. The machine should be quiet.
    """
    check_target(out)
    load_by_name("torch:set_num_threads")(1)
    with progress_bars() as progress:
        device = load_by_name("sharded_infer.planning.calibration:calibrate")(progress)
    text = load_by_name("sharded_infer.planning.calibration:topology_text")(out.stem, device, ranks)
    write_target(out, text)
    if as_json:
        print_json({"path": str(out), "ranks": ranks, "device": asdict(device)})
        return
    OUT.print(
        f"random rows {device.memory_bandwidth / 1e9:.2f} GB/s, from cache "
        f"{device.cache_bandwidth / 1e9:.2f} GB/s, copies {device.host_bandwidth / 1e9:.2f} GB/s, "
        f"a fused call {device.launch_seconds * 1e6:.1f} us\nwritten to {out}",
        highlight=False,
        soft_wrap=True,
    )
