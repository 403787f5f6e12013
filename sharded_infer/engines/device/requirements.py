"""Requirements of Triton on a machine with a GPU, besides torch's CUDA build."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path


def missing_for_gpus() -> tuple[str, ...]:
    """Missing requirements of this machine.

    Triton compiles a C launcher for each kernel at the first launch, with the system's compiler
    (`triton/runtime/build.py`, Triton 3.6).
    """
    missing = []
    if importlib.util.find_spec("triton") is None:
        missing.append("triton (extra: cuda)")
    compiler = os.environ.get("CC")
    if not any(shutil.which(name) for name in ([compiler] if compiler else ["gcc", "clang"])):
        named = f"CC={compiler} is none" if compiler else "gcc or clang"
        missing.append(f"a C compiler ({named}), which Triton starts kernels through")
    # Debian's default scheme names a folder in /usr/local, which does not contain the headers.
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")
    header = Path(sysconfig.get_paths(scheme)["include"]) / "Python.h"
    if not header.exists():
        missing.append(f"Python's headers ({header}), which Triton compiles with")
    return tuple(missing)
