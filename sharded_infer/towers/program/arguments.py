"""Arguments of a stored program's calls: literals, and references to earlier results.

Kinds and codes follow torch.export's schema (torch/_export/serde/schema.py, version 8).
"""

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import torch
from torch.fx import Node
from torch.fx.node import Argument

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.json_element import Element

# Codes of `ScalarType`, for the dtypes that the reader supports.
_DTYPES: Final = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    12: torch.bool,
    13: torch.bfloat16,
}
_LAYOUTS: Final = {7: torch.strided}
_MEMORY_FORMATS: Final = {1: torch.contiguous_format, 4: torch.preserve_format}


# A literal or a node.
_Item: TypeAlias = (
    Node
    | bool
    | int
    | float
    | str
    | torch.dtype
    | torch.layout
    | torch.device
    | torch.memory_format
)


def parse_argument(argument: Element, defined: Mapping[str, Node]) -> Argument:
    """Parses one serialized argument: an object with one member, named after its kind.

    Raises:
        TowerError: a kind that is not allowed, a name not in `defined` or a malformed literal.
    """
    kind, value = argument.union()
    one_of_a_list = _LIST_KINDS.get(kind)
    if one_of_a_list is not None:
        return [_parse_element(one_of_a_list, item, defined) for item in value.elements()]
    return _parse_element(kind, value, defined)


def _parse_element(kind: str, value: Element, defined: Mapping[str, Node]) -> _Item | None:
    if kind in _TAGGED_KINDS:
        inner, held = value.union()
        if inner not in _TAGGED_KINDS[kind]:
            raise value.refuse(f"one of {', '.join(_TAGGED_KINDS[kind])}")
        return _parse_element(inner, held, defined)
    if kind in ("as_tensor", "as_name"):
        name = (value.field("name") if kind == "as_tensor" else value).text()
        if name not in defined:
            raise TowerError(f"{value.where}: the name {name!r} is not defined")
        return defined[name]
    if kind == "as_none":
        return None
    if kind in _LITERALS:
        return _LITERALS[kind](value)
    raise TowerError(f"{value.where}: an argument of kind {kind!r} is not allowed in a tower")


def _cpu(value: Element) -> torch.device:
    # Towers are stored as exported, on the CPU; device engines move them.
    if value.field("type").text() != "cpu":
        raise value.refuse("the device 'cpu'")
    return torch.device("cpu")


def parse_dtype(value: Element) -> torch.dtype:
    """A dtype by its code; raises TowerError for unsupported ones."""
    if value.integer() not in _DTYPES:
        raise value.refuse(f"a dtype among {sorted(_DTYPES)}")
    return _DTYPES[value.integer()]


def parse_layout(value: Element) -> torch.layout:
    """A layout by its code; raises TowerError for any but the strided one."""
    if value.integer() not in _LAYOUTS:
        raise value.refuse("the strided layout (7)")
    return _LAYOUTS[value.integer()]


def _memory_format(value: Element) -> torch.memory_format:
    if value.integer() not in _MEMORY_FORMATS:
        raise value.refuse(f"a memory format among {sorted(_MEMORY_FORMATS)}")
    return _MEMORY_FORMATS[value.integer()]


_LITERALS: dict[str, Callable[[Element], _Item]] = {
    "as_bool": Element.boolean,
    "as_int": Element.integer,
    "as_float": Element.number,
    "as_string": Element.text,
    "as_scalar_type": parse_dtype,
    "as_layout": parse_layout,
    "as_memory_format": _memory_format,
    "as_device": _cpu,
}
# Values that are tagged unions themselves: a literal or a name.
_TAGGED_KINDS = {
    "as_sym_int": ("as_int", "as_name"),
    "as_sym_float": ("as_float", "as_name"),
    "as_sym_bool": ("as_bool", "as_name"),
    "as_optional_tensor": ("as_tensor", "as_none"),
}
_LIST_KINDS = {
    "as_bools": "as_bool",
    "as_ints": "as_int",
    "as_floats": "as_float",
    "as_strings": "as_string",
    "as_tensors": "as_tensor",
    "as_sym_ints": "as_sym_int",
    "as_sym_floats": "as_sym_float",
    "as_sym_bools": "as_sym_bool",
    "as_optional_tensors": "as_optional_tensor",
}
