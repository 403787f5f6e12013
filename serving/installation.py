"""What is installed, in words: the version, what it runs on, and what of it is compiled."""

import importlib.metadata
import platform
from contextlib import suppress

from serving.compiled_code import COMPILED_CODE

_BESIDE = ("torch", "fbgemm-gpu-cpu", "fbgemm-gpu", "triton")


def installation_text() -> str:
    """The version and what it was built with; nothing large is imported for it."""
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
