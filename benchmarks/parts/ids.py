"""Rates of an index of raw ids, beside a bare gather and other ways to find ids' rows.

Every call has new random ids, so that no variant reads what the one before left in the cache.
"""

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import fbgemm_gpu  # noqa: F401 - registers its operators
import numpy as np
import torch
import typer
from numpy.typing import NDArray

from kernels.abi.ids import BUCKET_BYTES
from kernels.backends.native import gather_rows
from kernels.ids.id_hash import murmur_hash3_2x64
from kernels.ids.id_index import IdIndex
from kernels.ids.index_layout import IDS_OF_A_HOME, hashes_of, homes_of
from kernels.ids.index_writer import id_index_parts
from serving.bench.turns import median_rates
from serving.commands.bench.report import TEXT, Report, bench_command, times
from sharded_infer.artifacts.table_memory import copy_to_huge_pages
from sharded_infer.errors import InternalError
from sharded_infer.progress import Progress

IDS_OF_A_CALL = 2**16
_CHUNK = 2**20
_LEAST_ROUNDS = 5
_MOST_PROBES = 128  # the default of TorchRec's module

Ids = NDArray[np.int64]


@bench_command
def ids_command(
    progress: Progress,
    entries: Annotated[
        int, typer.Option(min=16, max=2_000_000_000, help="Ids that the index knows.")
    ] = 100_000_000,
    seconds: Annotated[float, typer.Option(min=0.01, help="Seconds of calls.")] = 10.0,
) -> Report:
    """Measure the index of raw ids beside a gather, NumPy's searchsorted and TorchRec's MPZCH.

    Writes the index as publishing does, copies it to 2 MiB pages, and asks for known and unknown
    random ids on one thread. The gather copies one cache line of the index for each id. All know as
    many ids. Takes two minutes, 9 GB of memory and 3 GB of disk.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="sharded-infer-bench-") as folder:
        path = Path(folder) / "ids.index"
        before = _reset_peak()
        started = time.perf_counter()
        with path.open("wb") as file:
            chunks = _chunks(entries, progress)
            file.writelines(id_index_parts(chunks, entries, entries, folder=Path(folder)))
        build_seconds, build_bytes = time.perf_counter() - started, _status("VmHWM") - before
        memory = copy_to_huge_pages(path, lambda _: None)
    rates = _rates(memory, entries, seconds, progress)
    known, unknown = rates["known"], rates["unknown"]
    millions = times(1e-6, ".2f")
    return Report(
        [("million ids a second", TEXT), ("known", millions), ("unknown", millions)],
        [
            ("ours", known, unknown),
            ("gather of cache lines", rates["gather"], None),
            ("NumPy's searchsorted", rates["searchsorted"], None),
            ("TorchRec's MPZCH", rates["torchrec"], rates["torchrec_unknown"]),
        ],
        [
            f"{entries:,} ids, {len(memory) / entries:.1f} bytes each; an unknown id takes "
            f"{known / unknown:.2f} times what a known one takes; "
            f"{known / rates['gather']:.2f} of the gather",
            f"written in {build_seconds:.1f} s and {build_bytes / 1e6:.0f} MB of memory",
        ],
        {
            "entries": entries,
            "ids_per_second": known,
            "unknown_over_known": known / unknown,
            "gather_limit_fraction": known / rates["gather"],
            "measurement": {
                **rates,
                "build_seconds": build_seconds,
                "build_bytes": build_bytes,
                "index_bytes": len(memory),
            },
        },
    )


def _rates(
    memory: torch.Tensor, entries: int, seconds: float, progress: Progress
) -> dict[str, float]:
    """Ids a second of an index and its peers; cache lines a second of the gather."""
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

    return median_rates(
        {name: partial(prepared, name) for name in (*variants, "gather")},
        generator,
        seconds=seconds,
        least_rounds=_LEAST_ROUNDS,
        progress=progress,
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


def _status(field: str) -> int:
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return 0 if found is None else int(found[1]) * 1024
