"""The installation: version, platform, and packages with compiled code."""

import importlib.metadata
import platform
from contextlib import suppress

from kernels.errors import CompiledCodeError
from kernels.native_library import library_path, missing_text

_BESIDE = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "triton")


# Packages with a compiled library beside their modules.
COMPILED_PACKAGES = ("kernels", "quant", "sharded_infer", "serving")


def check_compiled() -> None:
    """Raise CompiledCodeError, naming packages without compiled code; load nothing."""
    if missing := [name for name in COMPILED_PACKAGES if library_path(name) is None]:
        raise CompiledCodeError(missing_text(missing))


def installation_text() -> str:
    """The version and its platform, without large imports."""
    built = [name for name in COMPILED_PACKAGES if library_path(name) is not None]
    lines = [f"sharded-infer {_version('sharded-infer') or 'of unknown version, not installed'}"]
    versions = [(name, _version(name)) for name in _BESIDE]
    beside = [f"Python {platform.python_version()}"]
    beside += [f"{name} {version}" for name, version in versions if version is not None]
    lines.append(", ".join(beside))
    lines.append(f"compiled: {', '.join(built) or 'nothing'}")
    return "\n".join(lines)


def _version(distribution: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return None
