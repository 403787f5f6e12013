"""Sequences that a program was exported for, as recorded beside its names.

A graph does not record a sequence's inputs or its longest length; beyond a table of positions it
fails, or reads a wrong row.
"""

from collections.abc import Mapping
from typing import Any, Final

from sharded_infer.errors import TowerError
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.json_element import Element

SEQUENCES: Final = "sequences"


def sequences_record(sequences: Mapping[str, SequenceInput]) -> dict[str, Any]:
    """JSON form of sequences."""
    return {
        name: {
            "width": one.width,
            "max_length": one.max_length,
            "fixed": one.fixed,
            "dense": dict(one.dense),
        }
        | ({"min_length": one.min_length} if one.min_length else {})
        for name, one in sequences.items()
    }


def parse_sequences(names: Element) -> Mapping[str, SequenceInput]:
    """Reads the output of `sequences_record` from the object that may have it as a member.

    Raises:
        TowerError: it has other members, or other types of them.
    """
    if not isinstance(names.value, dict) or SEQUENCES not in names.value:
        return {}
    return {name: _parse(found) for name, found in names.field(SEQUENCES).members()}


def _parse(found: Element) -> SequenceInput:
    return SequenceInput(
        width=_size(found.field("width")),
        max_length=_size(found.field("max_length")),
        fixed=found.field("fixed").boolean(),
        dense={name: _size(width) for name, width in found.field("dense").members()},
        min_length=sum(value.count() for name, value in found.members() if name == "min_length"),
    )


def _size(number: Element) -> int:
    if number.count() == 0:
        raise number.refuse("a number of 1 or more")
    return number.integer()


def check_sequences(
    recorded: Mapping[str, SequenceInput] | None, expected: Mapping[str, SequenceInput], where: str
) -> None:
    """Checks that a program can take the expected sequences.

    `recorded` are those that it was exported for; None if the file does not record them.

    Raises:
        TowerError: a sequence is another one, or may be longer than the program allows. Names
            `where`.
    """
    if recorded is None:
        return
    if set(recorded) != set(expected):
        raise TowerError(
            f"{where}: expected {_named(expected)}, the program was exported for {_named(recorded)}"
        )
    for name, wanted in expected.items():
        found = recorded[name]
        for what, one, other in (
            ("width", found.width, wanted.width),
            ("dense", dict(found.dense), dict(wanted.dense)),
        ):
            if one != other:
                raise TowerError(
                    f"{where}: sequence {name!r}: expected {what} = {other}, the program was "
                    f"exported for {one}"
                )
        if wanted.min_length < found.min_length:
            raise TowerError(
                f"{where}: sequence {name!r}: the program was exported for a min_length of "
                f"{found.min_length}, {wanted.min_length} is shorter"
            )
        if wanted.max_length > found.max_length:
            raise TowerError(
                f"{where}: sequence {name!r}: the program was exported for a max_length of "
                f"{found.max_length}, {wanted.max_length} is longer"
            )
        if not found.grows and (wanted.grows or wanted.max_length != found.max_length):
            raise TowerError(
                f"{where}: sequence {name!r}: the program was exported for a length of "
                f"{found.max_length} alone: set max_length = {found.max_length} and pad_to = "
                '"max_length"'
            )


def _named(sequences: Mapping[str, SequenceInput]) -> str:
    return f"the sequences {', '.join(sequences)}" if sequences else "no sequences"
