"""Times of a tower in two precisions, remembered by machine.

All processes of a machine must choose alike, or their scores would differ: the first to time a
tower writes the ratio into the user's cache folder, and the others read it.
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
    path = _path(signature)
    with suppress(OSError, ValueError):
        _known[path.name] = float(path.read_text())
    return _known.get(path.name)


def remember(signature: str, ratio: float) -> float:
    """Remembers a ratio, unless another process was first.

    Returns:
        The ratio that all processes of this machine use.
    """
    path = _path(signature)
    _known[path.name] = ratio
    written = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(f"{ratio:.3f}\n")
        with suppress(FileExistsError):
            os.link(written, path)
        written.unlink()
    return recall(signature) or ratio


def _path(signature: str) -> Path:
    users = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    here = f"{platform.node()} {machine()} {torch.__version__} {signature}"
    name = hashlib.sha256(here.encode()).hexdigest()
    return Path(users) / "sharded-infer" / "product-times" / name
