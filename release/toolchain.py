"""Compiler of the wheels, the same on every machine.

Zig includes Clang, libc++ and the symbols of each glibc: its output needs nothing newer than the
named glibc, on either processor family, and contains libc++.
"""

import os
import sys
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path

import ziglang

ROOT = Path(__file__).parents[1]
GLIBC = "2.28"
_EXPORTS = Path(__file__).parent / "exports.map"
_ZIG = Path(ziglang.__file__).parent
# Zig checks for undefined behaviour unless told to optimize.
_FLAGS = "-fno-sanitize=undefined -DNDEBUG -g0"


class Processor(StrEnum):
    """Processor families that have wheels."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"

    @property
    def platform(self) -> str:
        """The wheel's platform (PEP 600)."""
        return f"manylinux_{GLIBC.replace('.', '_')}_{self}"

    @property
    def compilers(self) -> tuple[str, str]:
        """Commands that compile C and C++; `environment` has their paths."""
        target = f"-target {self}-linux-gnu.{GLIBC}"
        return f"zig cc {target}", f"zig c++ {target}"


def toolchain_text() -> str:
    """The compiler and its version."""
    return f"zig {version('ziglang')}"


def environment(processor: Processor, epoch: int) -> dict[str, str]:
    """Variables of builds by setuptools and make, with files of `epoch`, seconds since 1970."""
    c, cpp = processor.compilers
    linker = f"{cpp} -shared -s -Wl,--version-script={_EXPORTS}"
    caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), str(ROOT / "build/zig"))
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SHARDED_INFER")}
    path = os.pathsep.join((str(_ZIG), str(Path(sys.executable).parent), os.environ["PATH"]))
    return {
        **kept,
        **caches,
        "PATH": path,
        "CC": c,
        "CXX": cpp,
        "LDSHARED": linker,
        "LDCXXSHARED": linker,
        "CFLAGS": _FLAGS,
        "CXXFLAGS": _FLAGS,
        "LDFLAGS": "",
        # The system's commands write no index of the other family's symbols.
        "AR": "zig ar",
        "RANLIB": "zig ranlib",
        "SOURCE_DATE_EPOCH": str(epoch),
        # Python's own platform.
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
    }
