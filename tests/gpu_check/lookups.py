"""Speed of lookups over tables much larger than the cache, beside torch's and FBGEMM's."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial

import torch
from torch import Tensor

from kernels.fused_tables import FusedTables
from kernels.gpu.row_stride import WIDE_BYTES, device_stride
from kernels.gpu.triton_lookup import TritonLookup
from kernels.row_format import RowFormat
from tests.gpu_check.cases import MULTI_HOT, large_tables, placed, random_ids
from tests.gpu_check.fbgemm_peer import FbgemmPeer
from tests.gpu_check.stage import Report, Stage
from tests.gpu_check.timing import seconds_of

_TABLES = 26
_DIM = 128
_CACHE_BYTES = 256 << 20  # several times the cache of any GPU that is meant
_MOST_SETS = 40
_SECTOR_BYTES = 32  # what memory is read in
_OUT_BYTES, _INDEX_BYTES = 4, 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows of each of 26 tables of dim 128, samples of batches, formats at serving's strides."""

    rows: int
    batches: tuple[int, ...]
    formats: tuple[RowFormat, ...]


USUAL = Sizes(
    rows=1_200_000,
    batches=(270, 2048, 4096),
    formats=(RowFormat.INT8, RowFormat.INT4, RowFormat.BF16, RowFormat.FP16),
)
TINY = Sizes(rows=20, batches=(1,), formats=(RowFormat.INT8, RowFormat.FP16))


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one lookup of all tables by `triton`, `embedding_bag` or `fbgemm_gpu`.

    Bags are `one id` or `multi-hot`, ids `uniform` or `zipf`. Moved bytes are sectors of the rows
    of all ids, repeated ones too, outputs, ids and offsets.
    """

    kernel: str
    row_format: str
    bags: str
    ids: str
    batch: int
    seconds: float
    moved_bytes: int
    share_of_copy: float


def run(stage: Stage) -> Report:
    """Time every kernel on every format, kind of bag, kind of ids and batch, while there is time.

    Saves and returns measurements, with what was left out,
    notes on peers, and failures of ours.
    """
    sizes, device = TINY if stage.is_dry else USUAL, stage.device
    copy_rate = stage.report.get("ceilings", {}).get("copy_bytes_per_second", math.nan)
    measured: list[dict[str, object]] = []
    left_out: list[str] = []
    notes: list[str] = []
    failures: list[str] = []
    for row_format in sizes.formats:
        tables = large_tables(row_format, tables=_TABLES, rows=sizes.rows, dim=_DIM, device=device)
        for kernel, prepare in _kernels(tables, notes):
            for bags, lengths in (("multi-hot", MULTI_HOT), ("one id", (1,) * _TABLES)):
                name = f"{kernel} {row_format}, {bags}"
                if not stage.has_time():
                    left_out.append(name)
                    continue
                try:
                    run = prepare(lengths)
                    for ids in ("uniform", "zipf"):
                        for batch in sizes.batches:
                            seconds = _time(run, tables, lengths, batch, skewed=ids == "zipf")
                            moved = moved_bytes(row_format, lengths, batch)
                            found = Measured(
                                kernel, row_format.value, bags, ids, batch, seconds, moved,
                                moved / seconds / copy_rate,
                            )  # fmt: skip
                            measured.append(asdict(found))
                            stage.save({"measured": measured})
                except Exception as error:  # the others are measured all the same
                    said = failures if kernel == "triton" else notes
                    said.append(f"{name}: {type(error).__name__}: {error}")
        del tables
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"measured": measured, "left_out": left_out, "notes": notes, "failures": failures}


_Run = Callable[[Tensor, Tensor, Tensor], None]
_Prepare = Callable[[Sequence[int]], _Run]


def moved_bytes(row_format: RowFormat, lengths: Sequence[int], batch: int) -> int:
    """Least bytes that a lookup moves without a cache: whole sectors of rows."""
    row_bytes = row_format.row_bytes(_DIM)
    stride = device_stride(row_bytes)
    # Payloads begin at wide addresses if rows do, headers before them.
    first = -row_format.header_bytes % WIDE_BYTES if stride % WIDE_BYTES == 0 else 0
    begins = [first + row * stride for row in range(_SECTOR_BYTES)]
    sectors = [
        (begin + row_bytes - 1) // _SECTOR_BYTES - begin // _SECTOR_BYTES + 1 for begin in begins
    ]
    ids = sum(lengths) * batch
    rows = ids * sum(sectors) * _SECTOR_BYTES // len(sectors)
    outputs = len(lengths) * batch * _DIM * _OUT_BYTES
    return rows + outputs + (ids + len(lengths) * batch + 1) * _INDEX_BYTES


def _kernels(tables: FusedTables, notes: list[str]) -> list[tuple[str, _Prepare]]:
    found: list[tuple[str, _Prepare]] = [("triton", partial(_triton, tables))]
    if tables.row_format is RowFormat.FP16:
        found.append(("embedding_bag", lambda lengths: _embedding_bag(tables, lengths)))
    refusal = FbgemmPeer.refusal(tables)
    if refusal is None:
        found.append(("fbgemm_gpu", lambda _lengths: _fbgemm(tables)))
    else:
        notes.append(f"fbgemm_gpu, {tables.row_format}: {refusal}")
    return found


def _triton(tables: FusedTables, lengths: Sequence[int]) -> _Run:
    lookup = TritonLookup(placed(tables), typical_lengths=lengths)

    def run(values: Tensor, offsets: Tensor, out: Tensor) -> None:
        lookup.pooled(values, offsets, out=out)

    return run


def _embedding_bag(tables: FusedTables, lengths: Sequence[int]) -> _Run:
    """One call a table, as in torch; offsets are prepared, and results stay separate."""
    row_bytes, rows = tables.row_format.row_bytes(_DIM), tables.rows[0]
    weights = [
        tables.memory[begin : begin + rows * row_bytes].view(torch.float16).view(rows, _DIM)
        for begin in tables.byte_offsets
    ]

    @cache
    def bag_offsets(length: int, batch: int) -> Tensor:
        device, end = tables.memory.device, length * batch + 1
        return torch.arange(0, end, length, dtype=torch.int32, device=device)

    def run(values: Tensor, _offsets: Tensor, out: Tensor) -> None:
        batch, begin = len(out), 0
        for weight, length in zip(weights, lengths, strict=True):
            ids = values[begin : begin + length * batch]
            begin += length * batch
            torch.nn.functional.embedding_bag(
                ids, weight, bag_offsets(length, batch), mode="sum", include_last_offset=True
            )

    return run


def _fbgemm(tables: FusedTables) -> _Run:
    peer = FbgemmPeer(tables)

    def run(values: Tensor, offsets: Tensor, _out: Tensor) -> None:
        peer.sums(values, offsets, None)

    return run


def _time(
    run: _Run, tables: FusedTables, lengths: Sequence[int], batch: int, *, skewed: bool
) -> float:
    device = tables.memory.device
    row_bytes = sum(lengths) * batch * tables.row_format.row_bytes(_DIM)
    sets = 1 if device.type == "cpu" else max(2, min(_MOST_SETS, _CACHE_BYTES // row_bytes))
    out = torch.empty(batch, tables.total_dim, device=device)
    steps = []
    for _ in range(sets):
        values, offsets = random_ids(
            lengths, batch=batch, rows=tables.rows[0], skewed=skewed, device=device
        )
        steps.append(partial(run, values, offsets, out))
    return seconds_of(steps, device, cold=True)
