"""Rates of an index of raw ids, beside a bare gather and other ways to find ids' rows.

The index is written as publishing does and copied to 2 MiB pages as `memory = "huge"` does. Every
call has new random ids, so that no variant reads what the one before left in the cache. Variants
take turns in random order; rates are medians, on one thread.
"""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import fbgemm_gpu  # noqa: F401 - registers its operators
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from kernels.backends.native import gather_rows
from kernels.ids.id_hash import murmur_hash3_2x64
from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import BUCKET_BYTES, IDS_OF_A_HOME, hashes_of, homes_of
from kernels.ids.index_writer import write_id_index
from serving.bench.turns import median_rates
from serving.commands.bench.report import TEXT, print_notes, print_table, times
from serving.commands.console import check_target, write_json
from serving.commands.options.json_option import JsonFileOption
from serving.commands.progress_bars import progress_bars
from sharded_infer.artifacts.table_memory import copy_to_huge_pages
from sharded_infer.errors import InternalError
from sharded_infer.progress import Progress

IDS_OF_A_CALL = 2**16
_CHUNK = 2**20
_LEAST_ROUNDS = 5
_MOST_PROBES = 128  # the default of TorchRec's module

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class IdMeasurement:
    """Ids a second of each variant, on one thread.

    Attributes:
        known: ids in our index.
        gather: cache lines a second, one for each id, copied from the same memory.
        searchsorted: known ids, by NumPy in sorted ids, with the comparison and the row.
        torchrec: known ids, by the operator of TorchRec's MPZCH module, in torch's memory.
        build_bytes: the most memory that writing took, beyond that of the process before.
    """

    known: float
    unknown: float
    gather: float
    searchsorted: float
    torchrec: float
    torchrec_unknown: float
    build_seconds: float
    build_bytes: int
    index_bytes: int


def ids_command(
    entries: Annotated[
        int, typer.Option(min=16, max=2_000_000_000, help="Ids that the index knows.")
    ] = 100_000_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds of calls.")] = 10.0,
    json_file: JsonFileOption = None,
) -> None:
    """Measure the index of raw ids beside a gather, NumPy's searchsorted and TorchRec's MPZCH.

    Writes the index as publishing does, copies it to 2 MiB pages, and asks for known and unknown
    random ids on one thread. The gather copies one cache line of the index for each id. All know as
    many ids. Takes two minutes, 9 GB of memory and 3 GB of disk.
    """
    check_target(json_file)
    with progress_bars() as progress:
        measured = measure_ids(entries, progress, seconds=seconds)
    millions = times(1e-6, ".2f")
    print_table(
        [("million ids a second", TEXT), ("known", millions), ("unknown", millions)],
        (
            ("ours", measured.known, measured.unknown),
            ("gather of cache lines", measured.gather, None),
            ("NumPy's searchsorted", measured.searchsorted, None),
            ("TorchRec's MPZCH", measured.torchrec, measured.torchrec_unknown),
        ),
    )
    print_notes(
        f"{entries:,} ids, {measured.index_bytes / entries:.1f} bytes each; an unknown id takes "
        f"{measured.known / measured.unknown:.2f} times what a known one takes; "
        f"{measured.known / measured.gather:.2f} of the gather",
        f"written in {measured.build_seconds:.1f} s and {measured.build_bytes / 1e6:.0f} MB of "
        "memory",
    )
    fields = {
        "entries": entries,
        "ids_per_second": measured.known,
        "unknown_over_known": measured.known / measured.unknown,
        "gather_limit_fraction": measured.known / measured.gather,
        "measurement": asdict(measured),
    }
    write_json(json_file, fields)


def measure_ids(entries: int, progress: Progress, *, seconds: float = 10.0) -> IdMeasurement:
    """Write an index of random ids and measure all its variants for `seconds`."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        path = Path(folder) / "ids.index"
        before = _reset_peak()
        started = time.perf_counter()
        with path.open("wb") as file:
            write_id_index(_chunks(entries, progress), entries, entries, file, folder=Path(folder))
        build_seconds, build_bytes = time.perf_counter() - started, _peak_bytes() - before
        memory = copy_to_huge_pages(path, lambda _: None)
    index = IdIndex.open(memory.numpy())
    ordered = ids_of(np.arange(entries))
    operator = _torchrec(ordered)
    order = np.argsort(ordered)
    ordered = ordered[order]
    if not np.array_equal(index.rows(ordered[:_CHUNK]), order[:_CHUNK]):
        raise InternalError("bench ids: the index gives ids the rows of others")
    lines = memory.view(-1, BUCKET_BYTES)
    variants: dict[str, Callable[[Ids], object]] = {
        "known": index.rows,
        "unknown": index.rows,
        "searchsorted": partial(_searched, ordered, order),
        "torchrec": operator,
        "torchrec_unknown": operator,
    }
    generator = np.random.default_rng(0)

    def prepared(name: str) -> tuple[Callable[[], object], int]:
        numbers = generator.integers(0, entries, IDS_OF_A_CALL)
        ids = ids_of(numbers + entries if name.endswith("unknown") else numbers)
        if name == "gather":
            return partial(gather_rows, lines, _places(ids, len(lines))), len(ids)
        return partial(variants[name], ids), len(ids)

    rates = median_rates(
        {name: partial(prepared, name) for name in (*variants, "gather")},
        generator,
        seconds=seconds,
        least_rounds=_LEAST_ROUNDS,
        progress=progress,
    )
    return IdMeasurement(
        **rates,
        build_seconds=build_seconds,
        build_bytes=build_bytes,
        index_bytes=len(memory),
    )


def ids_of(numbers: Ids) -> Ids:
    """Distinct ids, as random as hashes are: MurmurHash3's finalizer, a bijection."""
    ids = numbers.view(np.uint64)
    ids = (ids ^ (ids >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    ids = (ids ^ (ids >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (ids ^ (ids >> np.uint64(33))).view(np.int64)


def _chunks(entries: int, progress: Progress) -> Iterator[tuple[Ids, Ids]]:
    for first in range(0, entries, _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, entries))
        yield ids_of(numbers), numbers
        progress("writing the index", int(numbers[-1]) + 1, entries)


def _places(ids: Ids, lines: int) -> torch.Tensor:
    """Cache line of each id's home, after the header."""
    homes = max(1, lines - 256)
    return torch.from_numpy(homes_of(hashes_of(ids.view(np.uint64), 0), homes) + 1)


def _searched(ordered: Ids, rows: Ids, ids: Ids) -> Ids:
    places = np.searchsorted(ordered[:-1], ids)
    return np.where(ordered[places] == ids, rows[places], -1)


def _torchrec(ids: Ids) -> Callable[[Ids], object]:
    """The operator that TorchRec's MPZCH module runs, with these ids in slots for 5/4 of them.

    On a CPU the operator does not fill them: an id takes the first free slot from that of its hash
    on. Some in 10,000 lie further on than it searches, or past the end; they are left out.
    """
    slots = len(ids) * 5 // IDS_OF_A_HOME
    starts = (murmur_hash3_2x64(ids) % np.uint64(slots)).astype(np.int64)
    order = np.argsort(starts)
    starts = starts[order]
    numbers = np.arange(len(ids))
    places = np.maximum.accumulate(starts - numbers) + numbers
    found = (places - starts < _MOST_PROBES) & (places < slots)
    identities = np.full((slots, 1), -1, np.int64)
    identities[places[found], 0] = ids[order[found]]
    operator = partial(
        torch.ops.fbgemm.zero_collision_hash,
        identities=torch.from_numpy(identities),
        max_probe=_MOST_PROBES,
        circular_probe=True,
        readonly=True,
        disable_fallback=True,
    )
    return lambda asked: operator(torch.from_numpy(asked))


def _reset_peak() -> int:
    """Reset the kernel's record of the process's peak, and return its current bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak_bytes() -> int:
    return _status("VmHWM")


def _status(field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return 0 if found is None else int(found[1]) * 1024
