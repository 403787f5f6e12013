"""Measurement of this machine's constants for the cost model; best of several runs."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from sharded_infer.planning.device_models import DEVICE_MODELS
from sharded_infer.planning.topology import Device, Disk, FrontCosts, device_of
from sharded_infer.progress import Progress, no_progress

_DIM = 128
_FAR_BYTES = 2**30  # far beyond any cache
_NEAR_BYTES = 2**18  # well inside the second-level cache
_LOOKUPS = 2**19
_RUNS = 5


def calibrate(progress: Progress = no_progress) -> Device:
    """Measure one CPU rank: random row reads, cache, copies and a fused call's fixed cost.

    Takes about 15 seconds and 1.1 GiB, on one thread. Figures are in bytes a second and seconds.
    `progress` is called with the name of the running measurement.
    """
    model = DEVICE_MODELS["cpu"]
    steps = 4
    progress("measuring", 0, steps)
    far = _row_bandwidth(_FAR_BYTES, model.granule_bytes)
    progress("measuring", 1, steps)
    near = _row_bandwidth(_NEAR_BYTES, model.granule_bytes)
    progress("measuring", 2, steps)
    copy = _copy_bandwidth()
    progress("measuring", 3, steps)
    launch = _launch_seconds()
    progress("measuring", 4, steps)
    fields = asdict(device_of(model, memory_bytes=None)) | {
        "memory_bandwidth": far,
        "cache_bandwidth": max(near, far),
        "host_bandwidth": copy,
        "launch_seconds": launch,
    }
    return Device(**fields)


def topology_text(
    name: str,
    device: Device,
    ranks: int,
    front: FrontCosts | None = None,
    hosts: Iterable[int] = (),
    disk: Disk | None = None,
) -> str:
    """A topology file of equal CPU ranks.

    `ranks` are per host; `front` is this machine's (None: one host); `hosts` number the other
    hosts, taken to be as fast; `disk` holds rows not in memory (None: unmeasured).
    """
    text = (
        '# Measured by "sharded-infer calibrate"; bandwidths are bytes a second.\n'
        f"name = {json.dumps(name)}\n"
    )
    numbers: list[int | None] = [None]
    if front is not None:
        numbers = [front.host, *hosts]
        text += (
            f"\n[front]\nhost = {front.host}\n"
            f"call_seconds = {front.call_seconds:.4g}\n"
            f"round_trip_seconds = {front.round_trip_seconds:.4g}\n"
            f"send_bandwidth = {front.send_bandwidth:.4g}\n"
            f"receive_bandwidth = {front.receive_bandwidth:.4g}\n"
        )
    if disk is not None:
        text += (
            f"\n[disk]\nreads_per_second = {disk.reads_per_second:.4g}\n"
            f"read_seconds = {disk.read_seconds:.4g}\n"
        )
    for number in numbers:
        host = "" if number is None else f"host = {number}\n"
        text += (
            f'\n[[devices]]\ncard = "cpu"\ncount = {ranks}\n{host}'
            f"memory_bandwidth = {device.memory_bandwidth:.4g}\n"
            f"cache_bandwidth = {device.cache_bandwidth:.4g}\n"
            f"host_bandwidth = {device.host_bandwidth:.4g}\n"
            f"launch_seconds = {device.launch_seconds:.4g}\n"
        )
    return text


def _row_bandwidth(table_bytes: int, granule: int) -> float:
    row_bytes = RowFormat.INT8.row_bytes(_DIM)
    rows = table_bytes // row_bytes
    # Ones: values do not matter, but the pages must be resident.
    memory = torch.ones(rows * row_bytes, dtype=torch.uint8)
    lookup = PooledLookup(FusedTables(memory, RowFormat.INT8, (0,), (rows,), (_DIM,), (False,)))
    bag = 16
    lengths = torch.full((1, _LOOKUPS // bag), bag)
    batches = [Bags(torch.randint(rows, (_LOOKUPS,)), lengths) for _ in range(_RUNS + 1)]
    lookup(batches[0])
    # Fresh ids each time: the last run's rows may still be cached.
    seconds = min(_seconds(partial(lookup, bags, ids_checked=True)) for bags in batches[1:])
    return _LOOKUPS * (row_bytes + granule - 1) / seconds


def _copy_bandwidth() -> float:
    source = torch.ones(2**26, dtype=torch.uint8)
    target = torch.empty_like(source)
    seconds = min(_seconds(lambda: target.copy_(source)) for _ in range(_RUNS))
    return source.numel() / seconds


def _launch_seconds() -> float:
    tables = 26
    row_bytes = RowFormat.INT8.row_bytes(4)
    memory = torch.ones(row_bytes, dtype=torch.uint8)
    every = FusedTables(
        memory, RowFormat.INT8, (0,) * tables, (1,) * tables, (4,) * tables, (False,) * tables
    )
    lookup = PooledLookup(every)
    bags = Bags(torch.zeros(tables, dtype=torch.int64), torch.ones(tables, 1, dtype=torch.int64))
    return min(_seconds(lambda: lookup(bags, ids_checked=True)) for _ in range(200))


def _seconds(run: Callable[[], Tensor]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
