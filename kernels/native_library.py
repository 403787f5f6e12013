"""Compiled code: where it is, and which instruction sets of it this machine can run.

Compiled libraries lie beside their package's modules and are called through ctypes, which releases
the GIL. Without a compiler a package is built without them.
"""

import ctypes
import os
from enum import IntEnum
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError

# Environment variable: the name of the fastest instruction set that may be used.
MAX_INSTRUCTION_SET = "SHARDED_INFER_MAX_INSTRUCTION_SET"
_Nothing = ctypes.c_char * 0


class InstructionSet(IntEnum):
    """What a library was compiled for; the values are those of its `library.cpp`."""

    BASELINE = 0
    AVX2 = 1
    AVX512 = 2


def load_library(folder: Path) -> ctypes.CDLL | None:
    """The compiled library of a package.

    Args:
        folder: the package's.

    Returns:
        The library, or None where it was not built.
    """
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"_native{suffix}"
        if path.is_file():
            return ctypes.CDLL(str(path))
    return None


def instruction_sets(library: ctypes.CDLL | None) -> tuple[InstructionSet, ...]:
    """What this machine can and may run of a library, the fastest last; empty without one.

    Raises:
        InputError: the environment's `SHARDED_INFER_MAX_INSTRUCTION_SET` names none.
    """
    if library is None:
        return ()
    most = _most_allowed()
    return tuple(
        s for s in InstructionSet if s <= most and library.sharded_infer_has(ctypes.c_int32(s))
    )


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

    A thread that releases the GIL waits for it after, milliseconds if others compute in Python.
    """
    return ctypes.PyDLL(library._name, handle=library._handle)


def address_of(array: NDArray[np.generic]) -> int:
    """Where an array's elements begin.

    Args:
        array: contiguous and writable; it may have no elements. The caller holds it.
    """
    # Ten times as fast as NumPy's own ways.
    return ctypes.addressof(_Nothing.from_buffer(array.data))
