"""Names of tables, inputs and outputs."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST_NAME = 200
# Dots and slashes could make tensor names collide, or leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*(\.[A-Za-z0-9_\-]+)*")
_RESERVED_ENDINGS = (".lengths", ".weights")
_RESERVED_PREFIXES = ("sparse.", "dense.", "score.")
# Reserved by the safetensors format.
_RESERVED = "__metadata__"


def _name(value: str) -> str:
    if len(value) > LONGEST_NAME or not _NAME.fullmatch(value):
        raise ValueError(
            f"{value[: LONGEST_NAME + 1]!r} is not a name: letters, digits, '_', '-' and inner "
            f"'.', {LONGEST_NAME} at most"
        )
    if value.endswith(_RESERVED_ENDINGS) or value.startswith((*_RESERVED_PREFIXES, _RESERVED)):
        raise ValueError(
            f"{value!r} is reserved: names do not end in {' or '.join(_RESERVED_ENDINGS)}, nor "
            f"begin with {' or '.join((*_RESERVED_PREFIXES, _RESERVED))}"
        )
    return value


Name = Annotated[str, AfterValidator(_name)]
Positive = Annotated[int, Field(ge=1)]
