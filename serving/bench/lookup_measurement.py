"""How fast rows are looked up: ours, FBGEMM's and torch's, beside what memory allows.

26 tables of one format and dim 128 in private memory, of 4 KiB or of 2 MiB pages; new random ids
for every call, so that no variant reads rows that the one before has just brought into the cache.
Variants take turns in random order, since each leaves its own page tables in the cache; rates are
medians, on one thread, with the outputs' memory mapped before (`serving/freed_memory.py`).
"""

import mmap
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from kernels.bags import Bags
from kernels.fbgemm_backend import FbgemmBackend
from kernels.fused_tables import FusedTables
from kernels.native_backend import NativeBackend, gather_rows
from kernels.row_format import RowFormat
from serving.bench.drawn_ids import IdDistribution, draw_ids
from serving.freed_memory import keep_freed_memory
from sharded_infer.progress import Progress

TABLES, DIM, IDS_OF_A_BAG = 26, 128, 8
BATCHES = (1, 16, 270)
_LEAST_CALLS = 6


@dataclass(frozen=True, slots=True)
class LookupMeasurement:
    """Rates of one batch size, distribution and kind of page, rows a second.

    Attributes:
        pages: `4 KiB` or `2 MiB`.
        ids: `uniform` or `zipf`.
        batch: samples of a call.
        ours: by our kernel.
        fbgemm: by FBGEMM's; None of formats that it does not read.
        torch: by `torch.nn.functional.embedding_bag` on as many bf16 tables, one after another;
            None where not measured.
        gather_limit: of copying the same rows and nothing else.
    """

    pages: str
    ids: str
    batch: int
    ours: float
    fbgemm: float | None
    torch: float | None
    gather_limit: float


def measure_lookups(
    row_format: RowFormat, rows: int, progress: Progress, *, seconds: float = 1.5
) -> list[LookupMeasurement]:
    """Measures every batch size, distribution and kind of page.

    Args:
        row_format: of the tables.
        rows: of each table.
        progress: told the measurements done.
        seconds: of calls, for each batch, distribution and kind of page.

    Raises:
        InputError: our kernel was not compiled.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    measured: list[LookupMeasurement] = []
    generator = np.random.default_rng(0)
    total = 2 * 2 * len(BATCHES)
    row_bytes = row_format.row_bytes(DIM)
    weights = torch.ones(TABLES, rows, DIM, dtype=torch.bfloat16)
    for pages in ("4 KiB", "2 MiB"):
        memory = private_memory(TABLES * rows * row_bytes, huge=pages == "2 MiB")
        tables = FusedTables(
            memory,
            row_format,
            tuple(table * rows * row_bytes for table in range(TABLES)),
            (rows,) * TABLES,
            (DIM,) * TABLES,
            (False,) * TABLES,
        )
        lookups: dict[str, Callable[[Bags], object]] = {"ours": NativeBackend(tables)}
        if FbgemmBackend.refusal(tables) is None:
            lookups["fbgemm"] = FbgemmBackend(tables)
        lookups["gather"] = partial(_gather, memory.view(-1, row_bytes), rows)
        if pages == "4 KiB":
            lookups["torch"] = partial(_embedding_bags, weights)
        for ids in ("uniform", "zipf"):
            for batch in BATCHES:
                bags = partial(_bags, generator, ids, batch, rows)
                rates = _rates(lookups, generator, bags, seconds)
                measured.append(
                    LookupMeasurement(
                        pages=pages,
                        ids=ids,
                        batch=batch,
                        ours=rates["ours"],
                        fbgemm=rates.get("fbgemm"),
                        torch=rates.get("torch"),
                        gather_limit=rates["gather"],
                    )
                )
                progress("looking up", len(measured), total)
    return measured


def private_memory(count: int, *, huge: bool) -> Tensor:
    """Private memory of the wanted pages, written once so that it is there.

    Args:
        count: bytes.
        huge: of 2 MiB pages where the system has them to give; otherwise of 4 KiB pages.

    Returns:
        uint8 `[count]`.
    """
    mapping = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    memory.fill_(1)
    return memory


def _bags(generator: np.random.Generator, ids: str, batch: int, rows: int) -> Bags:
    count = TABLES * batch * IDS_OF_A_BAG
    values = draw_ids(generator, IdDistribution(ids), rows, count)
    lengths = torch.full((TABLES, batch), IDS_OF_A_BAG)
    return Bags(torch.from_numpy(values), lengths)


def _gather(matrix: Tensor, rows: int, bags: Bags) -> Tensor:
    return gather_rows(matrix, bags.values + _first_rows(len(bags.values), rows))


@cache
def _first_rows(count: int, rows: int) -> Tensor:
    """Where each id's table begins, in rows: made once, as it is no part of a gather."""
    return torch.arange(TABLES).repeat_interleave(count // TABLES) * rows


def _embedding_bags(weights: Tensor, bags: Bags) -> list[Tensor]:
    batch = bags.lengths.shape[1]
    offsets = torch.arange(batch) * IDS_OF_A_BAG
    return [
        torch.nn.functional.embedding_bag(values, table, offsets, mode="sum")
        for values, table in zip(bags.values.view(TABLES, -1), weights, strict=True)
    ]


def _rates(
    lookups: dict[str, Callable[[Bags], object]],
    generator: np.random.Generator,
    bags: Callable[[], Bags],
    seconds_of_calls: float,
) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in lookups}
    spent, calls = 0.0, 0
    while spent < seconds_of_calls or calls < _LEAST_CALLS:
        for name in generator.permutation(list(lookups)):
            given = bags()
            started = time.perf_counter()
            lookups[name](given)
            seconds = time.perf_counter() - started
            spent += seconds
            found[name].append(len(given.values) / seconds)
        calls += 1
    return {name: statistics.median(rates) for name, rates in found.items()}
