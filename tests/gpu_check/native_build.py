"""Compiles our missing libraries."""

import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from kernels.native_library import FILE_NAME

PACKAGES = ("kernels", "sharded_infer", "quant")
_SECONDS = 120


def build_missing(root: Path) -> list[str]:
    """Compile what is missing, as an installation does; return packages with their library."""
    compiler = shutil.which("g++")
    missing = [package for package in PACKAGES if not _is_built(root / package)]
    if compiler is not None and missing:
        setup = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
        named = {module["name"]: module for module in setup["ext-modules"]}
        for package in missing:
            _build(compiler, named[f"{package}._native"], root, package)
    return [package for package in PACKAGES if _is_built(root / package)]


def _is_built(folder: Path) -> bool:
    return (folder / FILE_NAME).is_file()


def _build(compiler: str, module: dict[str, Any], root: Path, package: str) -> None:
    """Compile a library's files in parallel, which takes most of the time, and link them."""
    flags = [*module["extra-compile-args"], "-fPIC"]
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder) / f"{number}.o" for number in range(len(module["sources"]))]
        running = [
            subprocess.Popen([compiler, *flags, "-c", source, "-o", str(made)], cwd=root)
            for source, made in zip(module["sources"], objects, strict=True)
        ]
        for process in running:
            process.wait(_SECONDS)
        if all(made.exists() for made in objects):
            target = str(root / package / FILE_NAME)
            command = [compiler, "-shared", *map(str, objects), "-o", target, "-ldl"]
            subprocess.run(command, cwd=root, timeout=_SECONDS, check=False)
