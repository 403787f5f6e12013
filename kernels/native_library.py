"""Finds and loads compiled libraries, and the instruction sets that this machine can run.

Compiled libraries lie beside their package's modules and are called through ctypes, which releases
the GIL. Without a compiler a package is built without them.
"""

import ctypes
import importlib.util
import os
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from kernels.errors import InputError

if TYPE_CHECKING:
    # Every command asks which libraries were built, and NumPy takes 60 ms to import.
    import numpy as np
    from numpy.typing import NDArray

FILE_NAME = "_native.so"
# Environment variable: the name of the fastest instruction set that may be used.
MAX_INSTRUCTION_SET = "SHARDED_INFER_MAX_INSTRUCTION_SET"
_Nothing = ctypes.c_char * 0


class InstructionSet(IntEnum):
    """Instruction sets of a library; the values are those of its `library.cpp`."""

    BASELINE = 0
    AVX2 = 1
    AVX512 = 2


def library_path(package: str) -> Path | None:
    """Path of a package's compiled library, which is not loaded; None if it was not built."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    paths = (Path(folder) / FILE_NAME for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def load_library(package: str) -> ctypes.CDLL | None:
    """The compiled library of a package; None if it was not built."""
    path = library_path(package)
    return None if path is None else ctypes.CDLL(str(path))


def instruction_sets(library: ctypes.CDLL | None) -> tuple[InstructionSet, ...]:
    """Instruction sets that this machine can and may run, the fastest last.

    Raises:
        InputError: `SHARDED_INFER_MAX_INSTRUCTION_SET` is not an instruction set.
    """
    if library is None:
        return ()
    most = _most_allowed()
    return tuple(
        s for s in InstructionSet if s <= most and library.sharded_infer_has(ctypes.c_int32(s))
    )


def chosen_set(
    library: ctypes.CDLL | None, wanted: InstructionSet | None, what: str
) -> InstructionSet | None:
    """The instruction set that a pass runs with: the wanted one, else the fastest.

    Args:
        what: names the pass in the error.

    Returns:
        None if nothing was built.

    Raises:
        InputError: this machine cannot or may not run the wanted one.
    """
    available = instruction_sets(library)
    if wanted is not None and wanted not in available:
        names = ", ".join(one.name.lower() for one in available) or "none"
        raise InputError(f"{what}: no {wanted.name.lower()} here, only {names}")
    return wanted if wanted is not None else max(available, default=None)


def _most_allowed() -> InstructionSet:
    name = os.environ.get(MAX_INSTRUCTION_SET)
    if not name:
        return max(InstructionSet)
    try:
        return InstructionSet[name.upper()]
    except KeyError as error:
        known = ", ".join(s.name.lower() for s in InstructionSet)
        raise InputError(f"{MAX_INSTRUCTION_SET}: expected {known}, got {name!r}") from error


def keeping_gil(library: ctypes.CDLL) -> ctypes.PyDLL:
    """The same library, called without releasing the GIL: for calls of a few microseconds.

    A thread that releases the GIL may wait for it for milliseconds if others compute in Python.
    """
    return ctypes.PyDLL(library._name, handle=library._handle)


def address_of(array: "NDArray[np.generic]") -> int:
    """Address of an array's first element.

    Args:
        array: contiguous and writable, possibly empty. The caller keeps it alive.
    """
    # Ten times as fast as NumPy's own ways.
    return ctypes.addressof(_Nothing.from_buffer(array.data))
