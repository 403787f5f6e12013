"""What a machine with a card must have beside torch's CUDA build, for Triton to start kernels."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def missing_for_cards() -> tuple[str, ...]:
    """What is missing here, in words; empty: nothing.

    Triton brings the compiler of its kernels along, but compiles the C function that starts each
    with the system's compiler when it meets it first (`triton/runtime/build.py`, Triton 3.6).
    """
    missing = []
    if importlib.util.find_spec("triton") is None:
        missing.append("triton (extra: cuda)")
    compiler = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([compiler] if compiler else ["gcc", "clang"])):
        named = f"CC={compiler} is none" if compiler else "gcc or clang"
        missing.append(f"a C compiler ({named}), which Triton starts kernels through")
    # Debian's own scheme names a folder of /usr/local; Triton looks where the headers are.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_paths(scheme)["include"]) / "Python.h"
    if not header.exists():
        missing.append(f"Python's headers ({header}), which Triton compiles with")
    return tuple(missing)
