"""Compiled libraries, beside their package's modules.

`native/abi/` describes their structures and functions; PACKAGE/abi/ is generated from it.
"""

import ctypes
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.errors import CompiledCodeError

if TYPE_CHECKING:
    # Every command asks which libraries were built, and NumPy takes 60 ms to import.
    import numpy as np
    from numpy.typing import NDArray

FILE_NAME = "_native.so"
_Nothing = ctypes.c_char * 0
# PyMemoryView_FromMemory(address, bytes, PyBUF_WRITE) of CPython's C interface.
_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.argtypes, _memory_at.restype = (
    (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int),
    ctypes.py_object,
)
_WRITABLE = 0x200


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


def check_layout(
    library: ctypes.CDLL, header: str, digest: int, structures: Mapping[type[ctypes.Structure], int]
) -> None:
    """Compares a module of `native/abi/` with the library that was loaded.

    Args:
        digest: of the header's functions, constants and enums.
        structures: the header's, each with the digest of its fields.

    Raises CompiledCodeError, with the structure, if the library was built from another header.
    """
    expected = [digest]
    for structure, of_fields in structures.items():
        offsets = [getattr(structure, field).offset for field, *_ in structure._fields_]
        expected += (of_fields, ctypes.sizeof(structure), *offsets)
    symbol = f"sharded_infer_layout_of_{header}"
    try:
        count = ctypes.c_int64.in_dll(library, symbol).value
    except ValueError:
        raise _stale(library, f"native/abi/{header}.h") from None
    built = (ctypes.c_int64 * (1 + count)).in_dll(library, symbol)[1:]
    if built == expected:
        return
    at = 1
    for structure in structures:
        end = at + 2 + len(structure._fields_)
        if built[at:end] != expected[at:end]:
            raise _stale(library, f"{structure.__name__} of native/abi/{header}.h")
        at = end
    raise _stale(library, f"functions, constants or enums of native/abi/{header}.h")


def _stale(library: ctypes.CDLL, what: str) -> CompiledCodeError:
    return CompiledCodeError(
        f"{library._name} was built with other {what}: build it again (`make setup`, or "
        "`pip install` of the checkout)"
    )


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


@lru_cache(maxsize=1024)
def array_type(kind: Any, count: int) -> type[ctypes.Array[Any]]:
    """The type of an array, which ctypes would build anew in some 10 µs once it is collected."""
    array: type[ctypes.Array[Any]] = kind * count
    return array


def array_at(kind: Any, address: int | None, count: int) -> ctypes.Array[Any]:
    """The values of a ctypes type at an address, which may be null if there are none.

    The caller keeps their memory. `memory_at` suits counts that differ from call to call.
    """
    array = array_type(kind, count)
    return array() if address is None else array.from_address(address)


def memory_at(address: int, size: int) -> memoryview:
    """Writable bytes at an address, whose memory the caller keeps."""
    memory: memoryview = _memory_at(address, size, _WRITABLE)
    return memory


def address_of(array: "NDArray[np.generic]") -> int:
    """Address of the first element of a contiguous, writable, possibly empty array.

    The caller keeps it alive.
    """
    # Ten times as fast as NumPy's own ways.
    return ctypes.addressof(_Nothing.from_buffer(array.data))


def read_address(array: "NDArray[np.generic]") -> int:
    """Address of the first element of a contiguous array that may be read-only."""
    address: int = array.__array_interface__["data"][0]
    return address
