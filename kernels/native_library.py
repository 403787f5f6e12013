"""Compiled libraries: beside their package's modules, called through ctypes without the GIL."""

import ctypes
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import CompiledCodeError

if TYPE_CHECKING:
    # Every command asks which libraries were built, and NumPy takes 60 ms to import.
    import numpy as np
    from numpy.typing import NDArray

FILE_NAME = "_native.so"
_Nothing = ctypes.c_char * 0


def library_path(package: str) -> Path | None:
    """Path of a package's compiled library, which is not loaded; None if it was not built."""
    spec = importlib.util.find_spec(package)
    folders = (spec and spec.submodule_search_locations) or ()
    paths = (Path(folder) / FILE_NAME for folder in folders)
    return next((path for path in paths if path.is_file()), None)


def load_library(package: str) -> ctypes.CDLL:
    """The compiled library of a package.

    Raises CompiledCodeError if it was not built, or the machine is big-endian.
    """
    if sys.byteorder != "little":
        raise CompiledCodeError("sharded-infer runs on little-endian machines alone")
    path = library_path(package)
    if path is None:
        raise CompiledCodeError(missing_text((package,)))
    return ctypes.CDLL(str(path))


def function_of(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    """A function of a library, with the types of its result and its arguments."""
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


def missing_text(packages: Sequence[str]) -> str:
    """Advice for people about packages without their libraries: what to install."""
    return (
        f"installed without compiled code ({', '.join(packages)}): install a wheel of "
        "sharded-infer, or a C++ compiler (g++ or clang++) and then sharded-infer again"
    )


def keeping_gil(library: ctypes.CDLL) -> ctypes.PyDLL:
    """The same library, called without releasing the GIL: for calls of a few microseconds.

    A thread that releases the GIL may wait for it for milliseconds if others compute in Python.
    """
    return ctypes.PyDLL(library._name, handle=library._handle)


def address_of(array: "NDArray[np.generic]") -> int:
    """Address of the first element of a contiguous, writable, possibly empty array.

    The caller keeps it alive.
    """
    # Ten times as fast as NumPy's own ways.
    return ctypes.addressof(_Nothing.from_buffer(array.data))
