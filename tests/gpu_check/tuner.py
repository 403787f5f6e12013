"""Tries tiles on the GPU, within a time, and keeps the best of each shape."""

from collections.abc import Callable

import torch

from kernels.gpu.triton_lookup import TritonLookup, new_outside
from kernels.gpu.triton_tiles import TileChoice, power_of_two, row_words
from kernels.gpu.triton_tuning import candidates, shape_key
from kernels.row_format import RowFormat
from tests.gpu_check.cases import MULTI_HOT, large_tables, placed, random_ids
from tests.gpu_check.processes import in_processes
from tests.gpu_check.timing import seconds_of

_TABLES = 26
_SETS = 4  # of ids, so that rows come from memory


def tune(
    shapes: tuple[tuple[RowFormat, int], ...],
    device: torch.device,
    *,
    rows: int,
    batch: int,
    has_time: Callable[[], bool],
) -> tuple[dict[str, TileChoice], dict[str, object]]:
    """Times every candidate on multi-hot bags of uniform ids.

    Args:
        shapes: formats and dims.
        device: a GPU, or a CPU to try the script.
        rows: of each of 26 tables.
        batch: samples.
        has_time: whether to go on; a shape that was begun keeps the best so far.

    Returns:
        The choice of each shape, and all times in seconds.
    """
    best: dict[str, TileChoice] = {}
    times: dict[str, object] = {}
    for row_format, dim in shapes:
        if not has_time():
            break
        alignment = 16 if row_format.header_bytes else 1
        tables = placed(
            large_tables(row_format, tables=_TABLES, rows=rows, dim=dim, device=device), alignment
        )
        sets = [
            random_ids(MULTI_HOT, batch=batch, rows=rows, skewed=False, device=device)
            for _ in range(_SETS if device.type == "cuda" else 1)
        ]
        out = torch.empty(batch, tables.total_dim, device=device)
        outside = new_outside(device)
        found: list[tuple[float, TileChoice]] = []
        # The default first, so that a choice is never worse.
        choices = list(dict.fromkeys([TileChoice(), *candidates()]))
        if device.type == "cuda":
            # The cache of Triton is on the disk: what others compile is found there.
            cases = [(row_format, dim, choice) for choice in choices]
            compiled = [one for one, error in in_processes(_compile, cases) if error is None]
            choices = [choice for _, _, choice in compiled]
        for choice in choices if device.type == "cuda" else choices[:2]:
            if found and not has_time():
                break
            lookup = TritonLookup(tables, typical_lengths=MULTI_HOT, choice=choice)
            steps = [_step(lookup, *ids, out, outside) for ids in sets]
            found.append((seconds_of(steps, device, cold=True), choice))
        if not found:
            raise RuntimeError(f"{row_format} at {dim}: no choice of tiles compiles")
        words = power_of_two(row_words(row_format, dim))
        key = shape_key(row_format, words, tables.payload_alignment)
        best[key] = min(found, key=lambda pair: pair[0])[1]
        times[key] = [{"seconds": seconds, "choice": repr(choice)} for seconds, choice in found]
        del tables
    return best, times


def _compile(case: tuple[RowFormat, int, TileChoice]) -> None:
    """Has a choice compiled: nothing that it is compiled for depends on rows or samples."""
    row_format, dim, choice = case
    device = torch.device("cuda")
    alignment = 16 if row_format.header_bytes else 1
    tables = placed(
        large_tables(row_format, tables=_TABLES, rows=9, dim=dim, device=device), alignment
    )
    ids = random_ids(MULTI_HOT, batch=2, rows=9, skewed=False, device=device)
    out = torch.empty(2, tables.total_dim, device=device)
    lookup = TritonLookup(tables, typical_lengths=MULTI_HOT, choice=choice)
    lookup.pooled(*ids, out=out, outside=new_outside(device))
    torch.cuda.synchronize(device)


def _step(
    lookup: TritonLookup,
    values: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    outside: torch.Tensor,
) -> Callable[[], None]:
    return lambda: lookup.pooled(values, offsets, out=out, outside=outside)
