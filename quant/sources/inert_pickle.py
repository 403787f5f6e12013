"""Reading of pickles as inert data: their names map to our records, and nothing is executed."""

import io
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import torch

from quant.sources.weight_source import SourceError

# The names allowed in a pickle, by exact module and name.
Names = Mapping[tuple[str, str], object]


class Record:
    """The pickled state of an object, without its class or behaviour.

    `arguments` are of its call, if any; `state` is the state that the pickle set, if any.
    """

    arguments: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments

    def __setstate__(self, state: object) -> None:
        self.state = state


# Values that cannot be called or modified.
TORCH_VALUES: Names = {
    ("torch", "Size"): tuple,
    **{
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    },
}


def is_extent(values: object) -> TypeGuard[tuple[int, ...]]:
    """True if a pickle's value can be a tensor's sizes, strides or offsets."""
    # A bool is an int to Python, but to no writer of tensors. NumPy has 32 axes at least.
    return (
        isinstance(values, tuple)
        and len(values) <= 32
        and all(type(value) is int and 0 <= value < 2**63 for value in values)
    )


class _Unpickler(pickle.Unpickler):
    def __init__(
        self, data: bytes, names: Names, where: str, persistent: Callable[[object], object] | None
    ) -> None:
        super().__init__(io.BytesIO(data))
        self._names = names
        self._where = where
        self._persistent = persistent

    def find_class(self, module_name: str, global_name: str) -> object:
        # Looked up, never imported: a dotted name resolves to nothing.
        if (module_name, global_name) not in self._names:
            raise SourceError(
                f"{self._where}: names {f'{module_name}.{global_name}'[:200]!r}, which no "
                "checkpoint of tensors needs; nothing of it was run"
            )
        return self._names[module_name, global_name]

    def persistent_load(self, pid: object) -> object:
        if self._persistent is None:
            raise SourceError(f"{self._where}: refers to something outside the pickle")
        return self._persistent(pid)


def read_pickle(
    data: bytes,
    names: Names,
    where: str,
    *,
    persistent: Callable[[object], object] | None = None,
) -> object:
    """Read an untrusted pickle from source `where`.

    `names` are stand-ins for the allowed modules and names. A stand-in must do nothing when called
    and must refuse attributes: a kind of `Record`, a dtype, `tuple`. `persistent` resolves
    persistent identifiers; None refuses them. Raises SourceError for another name, or for no
    pickle.
    """
    try:
        for opcode, argument, _ in pickletools.genops(data):
            # The C unpickler allocates a memo up to the largest index, and finds extensions itself.
            if opcode.name.startswith("EXT") or (
                "PUT" in opcode.name and int(argument or 0) > len(data)
            ):
                raise SourceError(f"{where}: a pickle must not have {opcode.name} {argument}")
        return _Unpickler(data, names, where, persistent).load()
    except SourceError:
        raise
    # A damaged pickle fails in as many ways as there are opcodes.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise SourceError(f"{where}: not a readable pickle: {reason}") from error
