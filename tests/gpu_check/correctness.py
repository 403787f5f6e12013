"""The kernels on the GPU against the reference, with fresh random numbers, outputs poisoned."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.gpu.triton_lookup import TritonLookup
from kernels.gpu.triton_tiles import TileChoice
from kernels.row_format import RowFormat
from tests.gpu_check.processes import in_processes
from tests.gpu_check.stage import Report, Stage
from tests.reference import lookups as reference
from tests.support.device_tables import device_tables
from tests.support.lookup_cases import Case, fill, store

_SHAPES = {
    "one dim": [(50, 128), (20, 128), (3, 128)],
    "many dims": [(9, 4), (30, 33), (20, 128), (7, 300), (1, 1)],
    "widest": [(11, 1024), (5, 8)],
}
_RELATIVE_ERROR = {torch.float32: 1e-5, torch.bfloat16: 2**-8}
# The dry run's interpreter is slow, and truncates bf16 where a GPU rounds.
_DRY_SHAPES = {"many dims": [(9, 4), (7, 33), (2, 1)]}


def run(stage: Stage) -> Report:
    """Compare every format, pooling, alignment, id and output type with the reference.

    On a CPU the interpreter tries a few. Saves and returns comparisons, those left out, and
    failures.
    """
    is_gpu = not stage.is_dry
    shapes = tuple(_SHAPES if is_gpu else _DRY_SHAPES)
    if not stage.has_time():
        names = [f"{row_format}, {shape}" for row_format in RowFormat for shape in shapes]
        return {"checked": 0, "left_out": names, "failures": []}
    checked, failures = 0, []
    cases = [(row_format, shapes, stage.device.type, stage.seed) for row_format in RowFormat]
    # On a GPU most of the time goes into compiling.
    done = in_processes(_check_format, cases) if is_gpu else ((c, _check_format(c)) for c in cases)
    for (row_format, *_), found in done:
        if isinstance(found, Exception):
            failures.append(f"{row_format}: {found}")
        else:
            failures += found
            checked += len(shapes)
        stage.save({"checked": checked, "failures": failures})
    return {"checked": checked, "left_out": [], "failures": failures}


def _check_format(case: tuple[RowFormat, tuple[str, ...], str, int]) -> list[str]:
    """Failures of a format, in a separate process."""
    row_format, shapes, device_type, seed = case
    device = torch.device(device_type)
    generator = torch.Generator().manual_seed(seed)
    failures = [f"{row_format}: {one}" for one in _check_strange(row_format, device, generator)]
    for shape in shapes:
        found = _check_shape(row_format, shape, device, generator)
        failures += [f"{row_format}, {shape}: {one}" for one in found]
    return failures


def _check_shape(
    row_format: RowFormat, shape: str, device: torch.device, generator: torch.Generator
) -> list[str]:
    is_gpu = device.type == "cuda"
    shapes = (_SHAPES if is_gpu else _DRY_SHAPES)[shape]
    host = _tables(row_format, shapes, generator)
    features, batch = len(host.dims), 37 if is_gpu else 3
    lengths = torch.randint(0, 6, (features, batch), generator=generator)
    # Some bags are much longer than others, and some empty.
    lengths[:, 1] = 200 if is_gpu else 9
    failures = []
    for weighted, alignment, dtype, ids in (
        (False, 16, torch.bfloat16, torch.int32),
        (True, 4, torch.float32, torch.int64),
    ):
        bags = fill(host, lengths.tolist(), weighted=weighted, seed=_drawn(generator))
        lookup = TritonLookup(
            device_tables(host, device, alignment=alignment),
            typical_lengths=[100.0 if weighted else 1.0] * features,
            choice=None if is_gpu else TileChoice(1, 4, 8),
        )
        values, offsets = bags.values.to(device, ids), bags.offsets().to(device, ids)
        weights = None if bags.weights is None else bags.weights.to(device)
        out = torch.full((batch, host.total_dim), math.nan, dtype=dtype, device=device)
        lookup.pooled(values, offsets, out=out, weights=weights)
        expected = reference.pooled_lookup(host, bags)
        allowed = _RELATIVE_ERROR[dtype] * (1 if is_gpu else 2)
        error = _relative_error(out, expected)
        if not error <= allowed:
            failures.append(f"pooled, {dtype}, rows at {alignment}: error {error:.2e}")
    return failures


def _check_strange(
    row_format: RowFormat, device: torch.device, generator: torch.Generator
) -> list[str]:
    """Ids outside their tables are skipped: they add nothing."""
    host = replace(_tables(row_format, [(7, 8)] * 3, generator), means=(False,) * 3)
    values = torch.tensor([1, 7, 2, -1, 3, 2**40, 4, -15, 5])
    lookup = TritonLookup(device_tables(host, device))
    out = torch.full((2, host.total_dim), math.nan, device=device)
    offsets = Bags(values, torch.tensor([[2, 1], [2, 1], [2, 1]])).offsets().to(device)
    lookup.pooled(values.to(device), offsets, out=out)
    kept = Bags(torch.tensor([1, 2, 3, 4, 5]), torch.tensor([[1, 1], [1, 0], [1, 1]]))
    error = _relative_error(out, reference.pooled_lookup(host, kept))
    return [] if error <= 1e-5 else [f"strange ids: error {error:.2e}"]


def _tables(
    row_format: RowFormat, shapes: Sequence[tuple[int, int]], generator: torch.Generator
) -> FusedTables:
    """Random tables of (rows, dim), every second one with means."""
    features = [(number, number % 2 == 1) for number in range(len(shapes))]
    return store(Case(shapes, features), row_format, seed=_drawn(generator))


def _drawn(generator: torch.Generator) -> int:
    return int(torch.randint(2**31, (), generator=generator))


def _relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over that of the expected values; NaN for any NaN."""
    difference = (found.double().cpu() - expected.double()).norm()
    return float(difference / expected.double().norm().clamp(min=1e-30))
