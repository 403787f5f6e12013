"""The submodule of a trained module that raised an error."""

from collections.abc import Iterator
from types import TracebackType

from torch import nn

from sharded_infer.towers.named_tower import NamedTower

__all__ = ["in_submodule"]

# Names of the module in frames of its own methods, of copy.deepcopy, and of loops over modules.
_LOCALS = ("self", "x", "part")


def in_submodule(root: nn.Module, error: BaseException) -> str:
    """Words on the innermost submodule of `root` in an error's traceback, or nothing."""
    root = root.tower if isinstance(root, NamedTower) else root
    names = {id(part): (name, part) for name, part in root.named_modules() if name}
    found = ""
    for frame_locals in _frames(error.__traceback__):
        for local in _LOCALS:
            if (known := names.get(id(frame_locals.get(local)))) is not None:
                name, part = known
                found = f" (submodule {name!r}, a {type(part).__name__})"
    return found


def _frames(traceback: TracebackType | None) -> Iterator[dict[str, object]]:
    while traceback is not None:
        yield traceback.tb_frame.f_locals
        traceback = traceback.tb_next
