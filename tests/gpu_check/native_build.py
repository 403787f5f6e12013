"""Compiles our libraries where a compiler is and nobody has built them: merging is slow without."""

import shutil
import subprocess
from pathlib import Path

from kernels.native_library import load_library

PACKAGES = ("kernels", "sharded_infer", "quant")
_SECONDS = 120


def build_missing(root: Path) -> list[str]:
    """Compiles what is missing, beside its package's modules.

    Args:
        root: of the checkout.

    Returns:
        The packages that have their library now.
    """
    compiler = shutil.which("g++")
    if compiler is not None:
        running = [
            subprocess.Popen(
                [compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden"]
                + ["-o", str(root / package / "_native.so")]
                + [str(source) for source in sorted((root / package / "native").glob("*.cpp"))]
            )
            for package in PACKAGES
            if load_library(root / package) is None
        ]
        for process in running:
            process.wait(_SECONDS)
    return [package for package in PACKAGES if load_library(root / package) is not None]
