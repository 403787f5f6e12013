"""Names of a program's inputs and outputs and its sequences, as recorded in its file.

`export_tower` writes them to a graph's `custom` metadata, which torch's tools preserve. A program
from `torch.export.export` alone has only the names of `forward`'s arguments and of dicts' keys.

A graph does not record a sequence's inputs or its longest length; beyond a table of positions it
fails, or reads a wrong row.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch.export import ExportedProgram

from sharded_infer.errors import TowerError
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.json_element import Element
from sharded_infer.towers.program.tower_inputs import TowerInputs

_CUSTOM: Final = "custom"
_OURS: Final = "sharded_infer"
_SEQUENCES: Final = "sequences"
_DEPTH: Final = 4  # levels of dicts and tuples in a module's inputs or outputs
# torch's generated names for the arguments of `forward(self, *inputs)`.
_NUMBERED: Final = re.compile(r"(.*)_(\d+)")


@dataclass(frozen=True, slots=True)
class ProgramNames:
    """Names in the program's order; None if the file does not record all of them.

    `sequences` are those that it was exported for; None if not recorded.
    """

    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    sequences: Mapping[str, SequenceInput] | None = None


def record_names(
    program: ExportedProgram, inputs: TowerInputs, outputs: Sequence[str]
) -> ExportedProgram:
    """Records the names, and the sequences if there are any, in the program; returns it."""
    names: dict[str, Any] = {"inputs": list(inputs.names), "outputs": list(outputs)}
    if inputs.sequences:
        names[_SEQUENCES] = _sequences_record(inputs.sequences)
    program.graph_module.meta[_CUSTOM] = {_OURS: names}
    return program


def recorded(metadata: dict[str, object]) -> dict[str, object]:
    """Reduces a serialized graph's metadata to the names."""
    try:
        names = json.loads(str(metadata[_CUSTOM]))[_OURS]
    except (KeyError, TypeError, ValueError):
        return {}
    return {_CUSTOM: json.dumps({_OURS: names})}


def parse_names(module: Element, inputs: int, outputs: int) -> ProgramNames:
    """Reads the names from `graph_module` of a stored program's document.

    Raises:
        TowerError: names recorded by `export_tower` repeat or have the wrong number, or its
            recorded sequences are invalid.
    """
    ours = _ours(module)
    if ours is None:
        return _torchs(module, inputs, outputs)
    return ProgramNames(
        _distinct(ours.field("inputs"), inputs),
        _distinct(ours.field("outputs"), outputs),
        _parse_sequences(ours),
    )


def _ours(module: Element) -> Element | None:
    try:
        text = module.field("metadata").field(_CUSTOM).text()
        return Element.parse(text.encode(), f"{module.where}.metadata.custom").field(_OURS)
    except (TowerError, UnicodeEncodeError):
        return None  # other tools may store anything here


def _distinct(names: Element, count: int) -> tuple[str, ...]:
    found = tuple(name.text() for name in names.elements())
    if len(found) != count or len(set(found)) != count:
        raise names.refuse(f"{count} distinct names")
    return found


def _torchs(module: Element, inputs: int, outputs: int) -> ProgramNames:
    try:
        signature = module.field("module_call_graph").elements()[0].field("signature")
        arguments = [name.text() for name in signature.field("forward_arg_names").elements()]
        positional, keyword = _tree(signature.field("in_spec")).field("children_spec").elements()
        taken: list[str | None] = []
        children = positional.field("children_spec").elements()
        for name, child in zip(arguments, children, strict=False):
            taken += _leaves(child, name, _DEPTH)
        taken += _leaves(keyword, None, _DEPTH)
        returned = _leaves(_tree(signature.field("out_spec")), None, _DEPTH)
    except (TowerError, IndexError, ValueError):
        return ProgramNames(None, None)
    named = _complete(taken, inputs)
    numbered = [_NUMBERED.fullmatch(name) for name in named or ()]
    if all(m and int(m[2]) == at and m[1] == numbered[0][1] for at, m in enumerate(numbered)):  # type: ignore[index]
        named = None
    return ProgramNames(named, _complete(returned, outputs))


def _tree(spec: Element) -> Element:
    return Element.parse(spec.text().encode(), spec.where).elements()[1]


def _leaves(spec: Element, name: str | None, depth: int) -> list[str | None]:
    """The names of a tree's tensors: a dict's keys, or `name` if the tree is a single tensor."""
    kind = spec.field("type")
    if kind.value is None:
        return [name]
    children = spec.field("children_spec").elements()
    if not depth:
        raise spec.refuse(f"at most {_DEPTH} levels")
    names: list[str | None] = [None] * len(children)
    if kind.text() == "builtins.dict":
        keys = Element.parse(spec.field("context").text().encode(), spec.where)
        names = [key.text() for key in keys.elements()]
    found: list[str | None] = []
    for child, key in zip(children, names, strict=True):
        found += _leaves(child, key, depth - 1)
    return found


def _complete(names: list[str | None], count: int) -> tuple[str, ...] | None:
    known = [name for name in names if name is not None]
    if len(names) != count or len(known) != count or len(set(known)) != count:
        return None
    return tuple(known)


def _sequences_record(sequences: Mapping[str, SequenceInput]) -> dict[str, Any]:
    """JSON form of sequences."""
    return {
        name: {
            "width": one.width,
            "max_length": one.max_length,
            "fixed": one.fixed,
            "dense": dict(one.dense),
        }
        | ({"min_length": one.min_length} if one.min_length else {})
        | ({"ids": list(one.ids)} if one.ids else {})
        for name, one in sequences.items()
    }


def _parse_sequences(names: Element) -> Mapping[str, SequenceInput]:
    """Reads the output of `_sequences_record` from the object that may have it as a member.

    Raises:
        TowerError: it has other members, or other types of them.
    """
    if not isinstance(names.value, dict) or _SEQUENCES not in names.value:
        return {}
    return {name: _parse_sequence(found) for name, found in names.field(_SEQUENCES).members()}


def _parse_sequence(found: Element) -> SequenceInput:
    ids = dict(found.members()).get("ids")
    return SequenceInput(
        width=_size(found.field("width")),
        max_length=_size(found.field("max_length")),
        fixed=found.field("fixed").boolean(),
        dense={name: _size(width) for name, width in found.field("dense").members()},
        min_length=sum(value.count() for name, value in found.members() if name == "min_length"),
        ids=() if ids is None else tuple(feature.text() for feature in ids.elements()),
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
            ("ids", list(found.ids), list(wanted.ids)),
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
