"""The installation: version, platform, and packages with compiled code."""

import importlib.metadata
import platform
from contextlib import suppress
from dataclasses import dataclass

from kernels.native_library import library_path

_BESIDE = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "triton")


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The compiled library of a package.

    Attributes:
        package: the library lies beside its modules.
        instead: the replacement if it was not built.
        serves: requests pass through it.
    """

    package: str
    instead: str
    serves: bool

    def is_built(self) -> bool:
        """Whether it was built; loads nothing."""
        return library_path(self.package) is not None


COMPILED_CODE = (
    CompiledCode(
        "kernels",
        "FBGEMM or torch look rows up (one sample takes twice as long, bf16 and fp8 more)",
        serves=True,
    ),
    CompiledCode("quant", "torch encodes tables", serves=False),
    CompiledCode("sharded_infer", "NumPy merges requests into batches", serves=True),
    CompiledCode(
        "serving",
        "Python reads requests (20 to 400 times as long: bench decode)",
        serves=True,
    ),
)


def missing_code() -> tuple[CompiledCode, ...]:
    """Libraries that were not built, without a C++ compiler or because it failed."""
    return tuple(code for code in COMPILED_CODE if not code.is_built())


def missing_text(missing: tuple[CompiledCode, ...]) -> str:
    """Text for people about missing libraries: the effect, and what to do.

    Args:
        missing: not empty.
    """
    slower = "; ".join(f"{code.package}: {code.instead}" for code in missing)
    return (
        f"built without compiled code, which is slower: {slower}. Install again where there is a "
        "C++ compiler (g++ or clang++)"
    )


def installation_text() -> str:
    """The version and its platform, without large imports."""
    built = [code.package for code in COMPILED_CODE if code.is_built()]
    missing = [code.package for code in COMPILED_CODE if code.package not in built]
    lines = [f"sharded-infer {_version('sharded-infer') or 'of unknown version, not installed'}"]
    versions = [(name, _version(name)) for name in _BESIDE]
    beside = [f"Python {platform.python_version()}"]
    beside += [f"{name} {version}" for name, version in versions if version is not None]
    lines.append(", ".join(beside))
    lines.append(f"compiled: {', '.join(built) or 'nothing'}")
    if missing:
        lines.append(f"not compiled, and slower: {', '.join(missing)}")
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None
