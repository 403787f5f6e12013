"""Which packages were built without their compiled code, and what is slower for it."""

import importlib.util
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """The compiled library of a package.

    Attributes:
        package: whose it is; the library lies beside its modules.
        instead: what does its work where it was not built.
        serves: whether requests pass through it.
    """

    package: str
    instead: str
    serves: bool

    def is_built(self) -> bool:
        """Whether it is there; nothing is loaded."""
        spec = importlib.util.find_spec(self.package)
        folders = (spec and spec.submodule_search_locations) or ()
        return any(
            (Path(folder) / f"_native{suffix}").is_file()
            for folder in folders
            for suffix in EXTENSION_SUFFIXES
        )


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
    """What was not built: there was no C++ compiler, or it failed."""
    return tuple(code for code in COMPILED_CODE if not code.is_built())


def missing_text(missing: tuple[CompiledCode, ...]) -> str:
    """What is missing, what is slower for it, and what to do, in words for people.

    Args:
        missing: at least one.
    """
    slower = "; ".join(f"{code.package}: {code.instead}" for code in missing)
    return (
        f"built without compiled code, which is slower: {slower}. Install again where there is a "
        "C++ compiler (g++ or clang++)"
    )
