"""Times of a tower in two precisions, remembered by machine.

Processes of a machine must choose alike, or their scores would differ: the first writes the ratio
into the cache folder (`SHARDED_INFER_CACHE`), and the others read it.
"""

import hashlib
import os
import platform
from contextlib import suppress
from math import inf
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter
from typing import Final

import torch

from kernels.machine import machine
from sharded_infer.files.cache_folder import cache_folder
from sharded_infer.towers.tower import Tower

_SAMPLES: Final = 64
_ROUNDS: Final = 5
_LENGTH: Final = 16


def relative_time(tower: Tower, other: Tower) -> float:
    """Ratio of two towers' times on 64 samples: the least of some runs of each."""
    inputs = tower.inputs
    *dense, embeddings = inputs.samples(_SAMPLES, inputs.lengths(_LENGTH))
    best = [inf] * 2
    for _ in range(_ROUNDS):
        for at, timed in enumerate((tower, other)):
            started = perf_counter()
            timed(dense, embeddings)
            best[at] = min(best[at], perf_counter() - started)
    return best[0] / best[1]


def recall(signature: str) -> float | None:
    """Remembered ratio of a tower; None if no process of this machine has one."""
    with suppress(OSError, RuntimeError, ValueError):
        ratio = float(_path(signature).read_text())
        return ratio if 0 < ratio < inf else None
    return None


def remember(signature: str, ratio: float) -> float | None:
    """Remembers a ratio, unless another process was first; returns the one in use.

    Returns:
        The ratio that all processes of this machine use; None if none can be kept.
    """
    with suppress(OSError, RuntimeError):
        path = _path(signature)
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as written:
            written.write(f"{ratio:.3f}\n")
            written.flush()
            # Readers of the file find it complete.
            os.link(written.name, path)
    return recall(signature)


def _path(signature: str) -> Path:
    here = f"{platform.node()} {machine()} {torch.__version__} {signature}"
    name = hashlib.sha256(here.encode()).hexdigest()
    return cache_folder(os.environ) / "product-times" / name
