"""Times choices of tiles of the pooling kernel on the GPU."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch

from kernels.gpu.triton_lookup import TritonLookup
from kernels.gpu.triton_tiles import TileChoice
from kernels.row_format import RowFormat
from tests.gpu_check.cases import MULTI_HOT, large_tables, placed, random_ids
from tests.gpu_check.processes import in_processes
from tests.gpu_check.stage import Report, Stage
from tests.gpu_check.timing import seconds_of

_TABLES = 26
_DIM = 128
_SETS = 4  # of ids, so that rows come from memory


@dataclass(frozen=True, slots=True)
class TuningSizes:
    """Formats at serving's strides, rows of each table, and choices (None: all) to look up.

    The choice is the best on the last batch.
    """

    formats: tuple[RowFormat, ...]
    rows: int
    batches: tuple[int, ...]
    choices: int | None = None


USUAL = TuningSizes((RowFormat.INT8, RowFormat.BF16, RowFormat.INT4), 1_200_000, (270, 2048))
TINY = TuningSizes((RowFormat.INT8,), 9, (1,), 2)


def run(stage: Stage) -> Report:
    """Time candidates on multi-hot bags of uniform ids; save and return seconds and the best."""
    sizes, device = TINY if stage.is_dry else USUAL, stage.device
    choices = list(candidates())[: sizes.choices]
    failed: list[tuple[RowFormat, TileChoice]] = []
    if not stage.is_dry:
        # The cache of Triton is on the disk, which shares compiled kernels.
        cases = [(row_format, choice) for row_format in sizes.formats for choice in choices]
        failed = [case for case, error in in_processes(_compile, cases) if error is not None]
    times: dict[str, list[dict[str, object]]] = {}
    best: dict[str, TileChoice] = {}
    for row_format in sizes.formats:
        tables = placed(
            large_tables(row_format, tables=_TABLES, rows=sizes.rows, dim=_DIM, device=device)
        )
        key = str(row_format)
        measured: list[tuple[float, TileChoice]] = []
        times[key] = []
        for choice in choices:
            if (row_format, choice) in failed or (measured and not stage.has_time()):
                continue
            lookup = TritonLookup(tables, typical_lengths=MULTI_HOT, choice=choice)
            seconds = {batch: _seconds(lookup, batch, sizes.rows) for batch in sizes.batches}
            measured.append((seconds[sizes.batches[-1]], choice))
            times[key].append({"seconds": seconds, "choice": asdict(choice)})
            stage.save({"times": times})
        if not measured:
            raise RuntimeError(f"{key}: no choice compiles")
        best[key] = min(measured, key=lambda pair: pair[0])[1]
        del tables
    return {"times": times, "best": {key: asdict(choice) for key, choice in best.items()}}


def candidates() -> Iterator[TileChoice]:
    """Choices that a tuner tries."""
    for warps, thread_words in itertools.product((1, 2), (8, 4, 16)):
        yield TileChoice(warps=warps, thread_words=thread_words)


def _seconds(lookup: TritonLookup, batch: int, rows: int) -> float:
    device = lookup.device
    out = torch.empty(batch, lookup.tables.total_dim, device=device)
    sets = [
        random_ids(MULTI_HOT, batch=batch, rows=rows, skewed=False, device=device)
        for _ in range(_SETS if device.type == "cuda" else 1)
    ]
    steps = [partial(lookup.pooled, *ids, out=out) for ids in sets]
    return seconds_of(steps, device, cold=True)


def _compile(case: tuple[RowFormat, TileChoice]) -> None:
    """Compile a choice: nothing that it is compiled for depends on rows or samples."""
    row_format, choice = case
    device = torch.device("cuda")
    tables = placed(large_tables(row_format, tables=_TABLES, rows=9, dim=_DIM, device=device))
    ids = random_ids(MULTI_HOT, batch=2, rows=9, skewed=False, device=device)
    out = torch.empty(2, tables.total_dim, device=device)
    lookup = TritonLookup(tables, typical_lengths=MULTI_HOT, choice=choice)
    lookup.pooled(*ids, out=out)
    torch.cuda.synchronize(device)
