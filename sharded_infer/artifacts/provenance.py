"""A version's origin, as declared by its publisher."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, StringConstraints, ValidationError
from pydantic.dataclasses import dataclass

from sharded_infer.errors import InputError

MOST_NOTE = 1000  # characters
MOST_NAME = 200


def _printable(value: str) -> str:
    # Control characters would reach terminals, and direction marks could hide text.
    if strange := next((one for one in value if not one.isprintable()), None):
        raise ValueError(f"{strange!r} is not a printable character")
    return value


Note = Annotated[
    str, StringConstraints(min_length=1, max_length=MOST_NOTE), AfterValidator(_printable)
]
RunName = Annotated[
    str, StringConstraints(min_length=1, max_length=MOST_NAME), AfterValidator(_printable)
]


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Provenance:
    """A version's origin.

    Attributes:
        run_id: of the training run, in its tracker.
        source_revision: of the training code, such as a commit.
    """

    note: Note | None = None
    run_id: RunName | None = None
    source_revision: RunName | None = None

    @property
    def text(self) -> str:
        """All of it in one line, for display."""
        said = {"note": self.note, "run": self.run_id, "source": self.source_revision}
        return "; ".join(f"{name} {value}" for name, value in said.items() if value is not None)


def provenance_of(
    note: str | None, run_id: str | None, source_revision: str | None
) -> Provenance | None:
    """The provenance of a version; None without texts, InputError for an invalid one."""
    said = {"note": note, "run_id": run_id, "source_revision": source_revision}
    if all(value is None for value in said.values()):
        return None
    try:
        return Provenance(**said)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        came = said[name]
        raise InputError(
            f"{name}: {problem['msg'].removeprefix('Value error, ')}, got {came!r:.80}"
        ) from error


def provenance_text(provenance: Provenance | None) -> str:
    """A version's provenance in one line, for display."""
    return "nothing is said of where it came from" if provenance is None else provenance.text
