"""A pytest plugin: the compiled code of `serving` is the library of SANITIZED_LIBRARY."""

import os
from pathlib import Path

from kernels import native_library

_library_path = native_library.library_path


def _sanitized(package: str) -> Path | None:
    return Path(os.environ["SANITIZED_LIBRARY"]) if package == "serving" else _library_path(package)


native_library.library_path = _sanitized
