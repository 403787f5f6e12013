"""The compiler of the wheels, which is the same on every machine.

Zig brings Clang, libc++ and the symbols of each glibc: what it builds needs nothing newer than the
glibc that is named, on either processor family, and libc++ is a part of it.
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
# Zig would look for undefined behaviour where it is not told to optimize.
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
        """Commands that compile C and C++; `environment` finds them."""
        target = f"-target {self}-linux-gnu.{GLIBC}"
        return f"zig cc {target}", f"zig c++ {target}"


def toolchain_text() -> str:
    """The compiler and its version."""
    return f"zig {version('ziglang')}"


def environment(processor: Processor, epoch: int) -> dict[str, str]:
    """The variables under which setuptools and make build for a processor.

    Args:
        epoch: time of all files, in seconds since 1970.
    """
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
        # The system's write no index of the other family's symbols.
        "AR": "zig ar",
        "RANLIB": "zig ranlib",
        "SOURCE_DATE_EPOCH": str(epoch),
        # What Python says that it runs on.
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
    }
