"""Measurement of this machine, and its connection to shard hosts, for the planner."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serving.commands.console import (
    JsonOption,
    check_target,
    print_result,
    progress_bars,
    write_target,
)
from serving.commands.lazy_group import load_by_name
from sharded_infer.planning.topology_file import MAX_RANKS

if TYPE_CHECKING:
    from sharded_infer.planning.topology import Disk, FrontCosts


def calibrate_command(
    out: Annotated[Path, typer.Option(help="Topology file to write.")] = Path("topology.toml"),
    ranks: Annotated[int, typer.Option(help="CPU ranks of a host.", min=1, max=MAX_RANKS)] = 1,
    shard_hosts: Annotated[
        Path | None,
        typer.Option(
            help="File that names running shard hosts, as of serve: also measure what asking them "
            "costs, and write a topology of a front here and these hosts."
        ),
    ] = None,
    disk: Annotated[
        Path | None,
        typer.Option(
            help="Folder of model repositories: also measure how its disk reads rows of tables "
            "larger than memory. Writes 0.25 GiB there, and removes it."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure this machine's constants for the planner, into a topology file for --topology.

    Takes about 15 seconds and 1.1 GiB on one thread. The machine should be quiet. Shard hosts are
    asked for some hundred lookups each, and taken to be as fast as this machine.
    """
    check_target(out)
    load_by_name("torch:set_num_threads")(1)
    front: FrontCosts | None = None
    hosts: list[int] = []
    with progress_bars() as progress:
        if shard_hosts is not None:
            settings = load_by_name("serving.remote_lookups.hosts_file:read_settings")(shard_hosts)
            measure = load_by_name("serving.remote_lookups.measured_hosts:measure_hosts")
            front, hosts = measure(settings, progress), sorted(settings.addresses)
        reads: Disk | None = None
        if disk is not None:
            reads = load_by_name("sharded_infer.planning.disk_calibration:measure_disk")(
                disk, progress
            )
        # Last: it takes longest, and a wrong file or folder is reported before.
        device = load_by_name("sharded_infer.planning.calibration:calibrate")(progress)
    topology_text = load_by_name("sharded_infer.planning.calibration:topology_text")
    write_target(out, topology_text(out.stem, device, ranks, front, hosts, reads))
    fields = {
        "path": str(out),
        "ranks": ranks,
        "device": asdict(device),
        "front": None if front is None else asdict(front),
        "disk": None if reads is None else asdict(reads),
        "hosts": hosts,
    }
    lines = [
        f"random rows {device.memory_bandwidth / 1e9:.2f} GB/s, from cache "
        f"{device.cache_bandwidth / 1e9:.2f} GB/s, copies {device.host_bandwidth / 1e9:.2f} GB/s, "
        f"a fused call {device.launch_seconds * 1e6:.1f} us"
    ]
    if front is not None:
        lines.append(
            f"asking a host {front.call_seconds * 1e6:.0f} us, its round trip "
            f"{front.round_trip_seconds * 1e6:.0f} us, ids {front.send_bandwidth / 1e9:.2f} GB/s, "
            f"sums {front.receive_bandwidth / 1e9:.2f} GB/s"
        )
    if reads is not None:
        lines.append(
            f"the disk reads {reads.reads_per_second:,.0f} rows a second, one alone in "
            f"{reads.read_seconds * 1e6:.0f} us"
        )
    print_result(fields, *lines, f"written to {out}", as_json=as_json)
