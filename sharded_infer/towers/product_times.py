"""Times of a tower in two precisions, remembered by machine.

All processes of a machine must choose alike, or their scores would differ: the first to time a
tower writes the ratio into the cache folder (`SHARDED_INFER_CACHE`), and the others read it.
"""

import hashlib
import os
import platform
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

import torch

from kernels.machine import machine
from sharded_infer.towers.tower import Tower

__all__ = ["recall", "relative_time", "remember"]

_SAMPLES: Final = 64
_ROUNDS: Final = 5
_LENGTH: Final = 16
# Of this process, where no folder can be written.
_known: dict[str, float] = {}


def relative_time(tower: Tower, other: Tower) -> float:
    """Time of one tower as a share of another's, on 64 samples: the least of some runs of each."""
    inputs = tower.inputs
    *dense, embeddings = inputs.samples(_SAMPLES, inputs.lengths(_LENGTH))
    best = [float("inf")] * 2
    for _ in range(_ROUNDS):
        for at, timed in enumerate((tower, other)):
            started = perf_counter()
            timed(dense, embeddings)
            best[at] = min(best[at], perf_counter() - started)
    return best[0] / best[1]


def recall(signature: str) -> float | None:
    """The remembered ratio of a tower; None if it was not timed on this machine."""
    name, folder = _name(signature), _folder()
    if folder is not None:
        with suppress(OSError, ValueError):
            _known[name] = float((folder / name).read_text())
    return _known.get(name)


def remember(signature: str, ratio: float) -> float:
    """Remembers a ratio, unless another process was first.

    Returns:
        The ratio that all processes of this machine use.
    """
    name, folder = _name(signature), _folder()
    _known[name] = ratio
    if folder is not None:
        written = folder / f"{name}.{os.getpid()}"
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            written.write_text(f"{ratio:.3f}\n")
            with suppress(FileExistsError):
                os.link(written, folder / name)
            written.unlink()
    return recall(signature) or ratio


def _name(signature: str) -> str:
    here = f"{platform.node()} {machine()} {torch.__version__} {signature}"
    return hashlib.sha256(here.encode()).hexdigest()


def _folder() -> Path | None:
    """The folder of remembered times; None for a user without a home."""
    cache = os.environ.get("SHARDED_INFER_CACHE")
    if not cache:
        users = os.environ.get("XDG_CACHE_HOME")
        try:
            cache = str(Path(users or Path.home() / ".cache") / "sharded-infer")
        except RuntimeError:
            return None
    return Path(cache) / "product-times"
