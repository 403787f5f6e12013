"""torch's error messages without colours, hints and tracebacks."""

import re
from typing import Final

from torch import nn

__all__ = ["in_submodule", "torch_message"]

_MOST_CHARACTERS: Final = 500
# Terminal control sequences and single control characters.
_CONTROL: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b.")
_UNPRINTABLE: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
# From here on torch prints frames of its own.
_TRACEBACK: Final = re.compile(
    r"^\s*(Traceback \(most recent|Original traceback|Exception raised from|frame #\d|"
    r"C\+\+ CapturedTraceback|GraphModule: |class GraphModule|The error above occurred|"
    r"Suggested fixes|Potential framework code)",
    re.MULTILINE,
)
# Advice on debugging torch, unrelated to the module.
_HINT: Final = re.compile(
    r"(For (more|extended|C\+\+)|If you suspect|Caused by:|consider using|You can suppress|"
    r"Set TORCH|TORCH_LOGS|https?://)"
)
_REPEATED_HINT: Final = re.compile(
    r" *(For more information, run with|If you're using mark_dynamic|You can find more).*"
)


def torch_message(error: BaseException) -> str:
    """One line for an error of torch's, cut to 500 characters.

    Control sequences, debugging hints, repeated lines and tracebacks are removed; its type's name
    if nothing is left.
    """
    text = _UNPRINTABLE.sub(" ", _CONTROL.sub("", str(error)))
    lines: list[str] = []
    for line in _TRACEBACK.split(text, maxsplit=1)[0].splitlines():
        cleaned = _REPEATED_HINT.sub("", line).strip()
        if cleaned and cleaned not in lines and not _HINT.match(cleaned):
            lines.append(cleaned)
    message = " ".join(lines) or type(error).__name__
    return message if len(message) <= _MOST_CHARACTERS else f"{message[:_MOST_CHARACTERS]}..."


def in_submodule(root: nn.Module, error: BaseException) -> str:
    """Words on the innermost submodule of `root` that a function in an error's traceback took."""
    names = {id(part): (name, part) for name, part in root.named_modules() if name}
    found, traceback = "", error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        first = (
            frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        )
        if (known := names.get(id(first))) is not None:
            name, part = known
            found = f" (submodule {name!r}, a {type(part).__name__})"
        traceback = traceback.tb_next
    return found
