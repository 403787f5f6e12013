"""Rates of lookups by our kernel, FBGEMM's and torch's, beside the memory's limit.

Each call has new random ids, so that no variant reads rows that the one before left in the cache.
Variants take turns in random order, since each leaves its page tables in the cache.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

from kernels.backends.fbgemm import FbgemmBackend
from kernels.backends.native import NativeBackend, gather_rows
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.machine import machine
from kernels.row_format import RowFormat
from serving.bench.parts.machine_limit import FILLED_BYTE, private_memory
from serving.bench.turns import median_rates
from serving.bench.workloads.requests import IdDistribution, draw_ids
from serving.commands.bench.report import TEXT, Report, bench_command, times
from serving.host.malloc import keep_freed_memory
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES, map_file
from sharded_infer.artifacts.file_pages import read_large, tensor_of
from sharded_infer.artifacts.table_memory import map_pages
from sharded_infer.progress import Progress

_TABLES, _DIM, _IDS_OF_A_BAG = 26, 128, 8
_BATCHES = (1, 16, 270)
_PAGES = ("4 KiB", "2 MiB", "defaults")
_SHOWN_FIRST = ("2 MiB", "uniform", 270)
_LEAST_ROUNDS = 6


@bench_command
def bench_lookup_command(
    progress: Progress,
    row_format: Annotated[
        RowFormat, typer.Option("--format", help="Row format of the tables.")
    ] = RowFormat.INT8,
    rows: Annotated[int, typer.Option(min=16, help="Rows of each of the 26 tables.")] = 400_000,
    seconds: Annotated[
        float,
        typer.Option(min=0.01, help="Seconds of calls for each size, distribution and page size."),
    ] = 1.5,
) -> Report:
    """Measure pooled lookups beside FBGEMM's kernel, torch's embedding_bag and a bare gather.

    Runs on one thread with bags of 8 and new ids for every call: uniform and Zipf (1.05) ids, 4 KiB
    and 2 MiB pages, and both sides' defaults: ours in a mapped file, FBGEMM's in torch's memory.
    Takes a minute and 6 GB. The file's top keys are those of uniform ids, 2 MiB
    pages and 270 samples.
    """
    measured = _measure(row_format, rows, seconds, progress)
    millions = times(1e-6, ".1f")
    [chosen] = [m for m in measured if (m["pages"], m["ids"], m["batch"]) == _SHOWN_FIRST]
    return Report(
        [
            ("pages", TEXT), ("ids", TEXT), ("samples", "d"), ("ours", millions),
            ("FBGEMM", millions), ("ratio", ".2f"), ("torch", millions), ("gather", millions),
            ("of it", ".2f"),
        ],
        [
            (
                one["pages"], one["ids"], one["batch"], one["ours"], one["fbgemm"],
                one["fbgemm"] and one["ours"] / one["fbgemm"], one["torch"], one["gather_limit"],
                one["ours"] / one["gather_limit"],
            )
            for one in measured
        ],
        [
            f"million rows a second, {row_format}, {_TABLES} tables of {rows:,} rows of dim "
            f"{_DIM}, bags of {_IDS_OF_A_BAG}; torch: bf16 rows"
        ],
        {
            "format": row_format,
            "instruction_set": machine().class_text,
            "rows_per_second": chosen["ours"],
            "fbgemm_rows_per_second": chosen["fbgemm"],
            "gather_limit_rows_per_second": chosen["gather_limit"],
            "measurements": measured,
        },
    )  # fmt: skip


def _measure(
    row_format: RowFormat, rows: int, seconds: float, progress: Progress
) -> list[dict[str, Any]]:
    """Rows a second of every batch size, distribution and kind of page; None: not measured."""
    torch.set_num_threads(1)
    keep_freed_memory()
    measured: list[dict[str, Any]] = []
    generator = np.random.default_rng(0)
    row_bytes = row_format.row_bytes(_DIM)
    count = _TABLES * rows * row_bytes
    weights = torch.ones(_TABLES, rows, _DIM, dtype=torch.bfloat16)
    cases = list(product(IdDistribution, _BATCHES))

    def prepared(
        lookup: Callable[[Bags], object], ids: IdDistribution, batch: int
    ) -> tuple[Callable[[], object], int]:
        values = draw_ids(generator, ids, rows, _TABLES * batch * _IDS_OF_A_BAG)
        lengths = torch.full((_TABLES, batch), _IDS_OF_A_BAG)
        return partial(lookup, Bags(torch.from_numpy(values), lengths)), len(values)

    for pages in _PAGES:
        if pages == "defaults":
            memory = _mapped_memory(count)
            others = torch.full((count,), FILLED_BYTE, dtype=torch.uint8)
        else:
            memory = others = private_memory(count, huge=pages == "2 MiB")
        tables = _tables(memory, row_format, rows)
        lookups: dict[str, Callable[[Bags], object]] = {"ours": NativeBackend(tables).pool}
        if FbgemmBackend.refusal(tables) is None:
            lookups["fbgemm"] = FbgemmBackend(_tables(others, row_format, rows)).pool
        lookups["gather_limit"] = partial(_gather, memory.view(-1, row_bytes), rows)
        if pages == "4 KiB":
            lookups["torch"] = partial(_embedding_bags, weights)
        for ids, batch in cases:
            rates = median_rates(
                {name: partial(prepared, lookup, ids, batch) for name, lookup in lookups.items()},
                generator,
                seconds=seconds,
                least_rounds=_LEAST_ROUNDS,
            )
            case = {"pages": pages, "ids": ids, "batch": batch}
            measured.append({**case, "fbgemm": None, "torch": None, **rates})
            progress("looking up", len(measured), len(_PAGES) * len(cases))
    return measured


def _mapped_memory(count: int) -> Tensor:
    """A new file of uint8 `[count]`, mapped as a server maps tables; deleted with the memory."""
    block = bytes([FILLED_BYTE]) * HUGE_PAGE_BYTES
    with NamedTemporaryFile(prefix="sharded-infer-bench-") as file:
        for first in range(0, count, HUGE_PAGE_BYTES):
            file.write(block[: count - first])
        file.flush()
        read_large(Path(file.name), lambda _: None)
        memory = tensor_of(map_file(file.fileno(), count, large=True))
    map_pages([memory], lambda _: None)
    return memory


def _tables(memory: Tensor, row_format: RowFormat, rows: int) -> FusedTables:
    table_bytes = rows * row_format.row_bytes(_DIM)
    return FusedTables(
        memory,
        row_format,
        tuple(table * table_bytes for table in range(_TABLES)),
        (rows,) * _TABLES,
        (_DIM,) * _TABLES,
        (False,) * _TABLES,
    )


def _gather(matrix: Tensor, rows: int, bags: Bags) -> Tensor:
    return gather_rows(matrix, bags.values + _first_rows(len(bags.values), rows))


@cache
def _first_rows(count: int, rows: int) -> Tensor:
    """First row of each id's table, cached since computing it is not part of a gather."""
    return torch.arange(_TABLES).repeat_interleave(count // _TABLES) * rows


def _embedding_bags(weights: Tensor, bags: Bags) -> list[Tensor]:
    batch = bags.lengths.shape[1]
    offsets = torch.arange(batch) * _IDS_OF_A_BAG
    return [
        torch.nn.functional.embedding_bag(values, table, offsets, mode="sum")
        for values, table in zip(bags.values.view(_TABLES, -1), weights, strict=True)
    ]
