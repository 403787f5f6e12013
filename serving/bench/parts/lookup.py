"""Rates of lookups by our kernel, FBGEMM's and torch's, beside the memory's limit.

26 tables of one format and dim 128 lie in private memory, of 4 KiB or of 2 MiB pages; then where
each library puts them by default: ours in a mapped file, FBGEMM's in torch's memory. Each call has
new random ids, so that no variant reads rows that the one before left in the cache. Variants take
turns in random order, since each leaves its page tables in the cache. Rates are medians, on one
thread, with the outputs' memory mapped before (`serving/host/malloc.py`).
"""

import mmap
from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.backends.fbgemm import FbgemmBackend
from kernels.backends.native import NativeBackend, gather_rows
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.row_format import RowFormat
from serving.bench.turns import median_rates
from serving.bench.workloads.drawn_ids import IdDistribution, draw_ids
from serving.host.malloc import keep_freed_memory
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, map_file
from sharded_infer.artifacts.file_pages import read_large, tensor_of
from sharded_infer.artifacts.table_memory import map_pages
from sharded_infer.progress import Progress

TABLES, DIM, IDS_OF_A_BAG = 26, 128, 8
BATCHES = (1, 16, 270)
PAGES = ("4 KiB", "2 MiB", "defaults")
# Its numbers are subnormal in no format; some processors are slow with subnormal numbers.
_BYTE = 0x3C
_LEAST_ROUNDS = 6


def measure_lookups(
    row_format: RowFormat, rows: int, seconds: float, progress: Progress
) -> list[dict[str, Any]]:
    """Measure every batch size, distribution and kind of page, each for `seconds`.

    Returns rows a second of each:
        pages: `4 KiB`, `2 MiB` or `defaults`: a server's for ours, torch's memory for FBGEMM.
        fbgemm: None for formats that it does not read.
        torch: `torch.nn.functional.embedding_bag` on as many bf16 tables, one after another.
        gather_limit: only copies the same rows.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    measured: list[dict[str, Any]] = []
    generator = np.random.default_rng(0)
    row_bytes = row_format.row_bytes(DIM)
    count = TABLES * rows * row_bytes
    weights = torch.ones(TABLES, rows, DIM, dtype=torch.bfloat16)
    for pages in PAGES:
        if pages == "defaults":
            memory, others = mapped_memory(count), torch.full((count,), _BYTE, dtype=torch.uint8)
        else:
            memory = others = private_memory(count, huge=pages == "2 MiB")
        tables = _tables(memory, row_format, rows)
        lookups: dict[str, Callable[[Bags], object]] = {"ours": NativeBackend(tables).pool}
        if FbgemmBackend.refusal(tables) is None:
            lookups["fbgemm"] = FbgemmBackend(_tables(others, row_format, rows)).pool
        lookups["gather_limit"] = partial(_gather, memory.view(-1, row_bytes), rows)
        if pages == "4 KiB":
            lookups["torch"] = partial(_embedding_bags, weights)
        for ids, batch in product(IdDistribution, BATCHES):
            bags = partial(_bags, generator, ids, batch, rows)
            rates = median_rates(
                {name: partial(_call, lookup, bags) for name, lookup in lookups.items()},
                generator,
                seconds=seconds,
                least_rounds=_LEAST_ROUNDS,
            )
            case = {"pages": pages, "ids": ids, "batch": batch}
            measured.append({**case, "fbgemm": None, "torch": None, **rates})
            progress("looking up", len(measured), len(PAGES) * len(IdDistribution) * len(BATCHES))
    return measured


def private_memory(count: int, *, huge: bool) -> Tensor:
    """Private memory, uint8 `[count]`, with its pages written, of 2 MiB if huge and possible."""
    mapping = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    memory.fill_(_BYTE)
    return memory


def mapped_memory(count: int) -> Tensor:
    """A new file of uint8 `[count]`, mapped as a server maps tables; deleted with the memory."""
    block = bytes([_BYTE]) * HUGE_PAGE_BYTES
    with NamedTemporaryFile(prefix="sharded-infer-bench-") as file:
        for first in range(0, count, HUGE_PAGE_BYTES):
            file.write(block[: count - first])
        file.flush()
        read_large(Path(file.name), _quietly)
        memory = tensor_of(map_file(file.fileno(), count, large=True))
    map_pages([memory], _quietly)
    return memory


def _call(
    lookup: Callable[[Bags], object], bags: Callable[[], Bags]
) -> tuple[Callable[[], object], int]:
    given = bags()
    return partial(lookup, given), len(given.values)


def _quietly(_: int) -> None:
    pass


def _tables(memory: Tensor, row_format: RowFormat, rows: int) -> FusedTables:
    table_bytes = rows * row_format.row_bytes(DIM)
    return FusedTables(
        memory,
        row_format,
        tuple(table * table_bytes for table in range(TABLES)),
        (rows,) * TABLES,
        (DIM,) * TABLES,
        (False,) * TABLES,
    )


def _bags(generator: np.random.Generator, ids: IdDistribution, batch: int, rows: int) -> Bags:
    values = draw_ids(generator, ids, rows, TABLES * batch * IDS_OF_A_BAG)
    lengths = torch.full((TABLES, batch), IDS_OF_A_BAG)
    return Bags(torch.from_numpy(values), lengths)


def _gather(matrix: Tensor, rows: int, bags: Bags) -> Tensor:
    return gather_rows(matrix, bags.values + _first_rows(len(bags.values), rows))


@cache
def _first_rows(count: int, rows: int) -> Tensor:
    """First row of each id's table, cached since computing it is not part of a gather."""
    return torch.arange(TABLES).repeat_interleave(count // TABLES) * rows


def _embedding_bags(weights: Tensor, bags: Bags) -> list[Tensor]:
    batch = bags.lengths.shape[1]
    offsets = torch.arange(batch) * IDS_OF_A_BAG
    return [
        torch.nn.functional.embedding_bag(values, table, offsets, mode="sum")
        for values, table in zip(bags.values.view(TABLES, -1), weights, strict=True)
    ]
