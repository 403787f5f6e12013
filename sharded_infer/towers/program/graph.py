"""The graph of a stored program: parsed, checked in full, then built as a torch.fx module.

The source is the JSON of `torch.export.save` (torch/_export/serde/schema.py, version 8). The parser
ignores symbolic expressions, guards and other metadata, some of which torch's loader evaluates as
code.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import Argument

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.arguments import parse_argument
from sharded_infer.towers.program.json_element import Element
from sharded_infer.towers.program.names import ProgramNames, parse_names
from sharded_infer.towers.program.operators import (
    ALLOWED,
    ASSERTIONS,
    MODE_DIVISIONS,
    TRUNC_DIVIDE,
    TRUNC_DIVIDE_NUMBER,
    Operator,
)
from sharded_infer.towers.program.substitutes import instead_of

# Key in a module's `meta`: the `ProgramNames` of its inputs and outputs.
NAMES: Final = "names"

# Key in the `meta` of a module's inputs: the width at export, or None.
WIDTH: Final = "width"

_POSITIONAL, _KEYWORD = 1, 2
_SCHEMA_MAJOR = 8

_REWRITTEN = (
    "; sharded_infer.towers.tower.export_tower rewrites many that are not (docs/operators.md)"
)

# With other values than these, an operator would update statistics or draw random numbers.
_TRAINING_ARGUMENTS = {"train": False, "training": False, "dropout_p": 0.0}

# Arguments of which torch also takes codes, and ends the process at some that are none.
_CODED: Final[Mapping[str, type]] = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the archive: its key in the weights or, if `is_constant`, in the constants."""

    key: str
    is_constant: bool


@dataclass(frozen=True, slots=True)
class TowerGraph:
    """A checked program.

    Names in its generated source are made here (`input0`, `weight0`, `v0`), never taken from the
    file.

    Attributes:
        graph: takes the program's inputs by position and returns a tuple.
        weights: by their names in the graph.
        names: recorded names of the inputs and the outputs.
    """

    graph: Graph
    weights: Mapping[str, Weight]
    names: ProgramNames

    def build(self, load: Callable[[Weight], torch.Tensor]) -> GraphModule:
        """Builds the module; `load` reads the tensors that it uses, its buffers."""
        root = torch.nn.Module()
        for node in self.graph.find_nodes(op="get_attr"):
            root.register_buffer(str(node.target), load(self.weights[str(node.target)]))
        built = GraphModule(root, self.graph, "TowerProgram").eval()
        built.meta[NAMES] = self.names
        return built


def parse_graph(program: Element) -> TowerGraph:
    """Checks a serialized program (`models/model.json`) in full and returns its graph.

    Raises:
        TowerError: the schema has another version, an operator or a kind of argument, input or
            output is not allowed, or a name is undefined or repeated. Names the position.
    """
    major = program.field("schema_version").field("major")
    if major.integer() != _SCHEMA_MAJOR:
        raise major.refuse(f"version {_SCHEMA_MAJOR} of torch.export's schema")
    module = program.field("graph_module")
    graph = module.field("graph")
    nodes = graph.field("nodes").elements()
    # All operators first: a forbidden operator is the most important error to report.
    for node in nodes:
        _check_operator(node.field("target"), program.where)
    inputs = _parse_inputs(graph, module.field("signature"))
    made, defined = Graph(), dict[str, Node]()
    given = [name for name, weight in inputs if weight is None]
    for number, name in enumerate(given):
        taken = _define(name, made.placeholder(f"input{number}"), defined, graph.where)
        taken.meta[WIDTH] = _width(graph, name)
    weights = {f"weight{at}": weight for at, (_, weight) in enumerate(inputs) if weight is not None}
    for at, (name, weight) in enumerate(inputs):
        if weight is not None:
            _define(name, made.get_attr(f"weight{at}"), defined, graph.where)
    calls = [one for one in nodes if one.field("target").text() not in ASSERTIONS]
    for number, call in enumerate(calls):
        _parse_call(call, made, defined, f"v{number}")
    outputs = _parse_outputs(graph, module.field("signature"))
    for name in outputs:
        if name not in defined:
            raise TowerError(f"{graph.where}: output {name!r} is not defined")
    made.output(tuple(defined[name] for name in outputs))
    made.eliminate_dead_code()
    return TowerGraph(made, weights, parse_names(module, len(given), len(outputs)))


def _check_operator(target: Element, where: str) -> None:
    if target.text() not in ALLOWED and target.text() not in ASSERTIONS:
        raise TowerError(
            f"{where}: operator {target.text()!r} is not allowed in a tower"
            f"{instead_of(target.text()) or _REWRITTEN}"
        )


def _define(name: str, node: Node, defined: dict[str, Node], where: str) -> Node:
    if name in defined:
        raise TowerError(f"{where}: the name {name!r} is defined twice")
    defined[name] = node
    return node


def _parse_inputs(graph: Element, signature: Element) -> tuple[tuple[str, Weight | None], ...]:
    inputs: list[tuple[str, Weight | None]] = []
    for spec in signature.field("input_specs").elements():
        kind, value = spec.union()
        if kind == "user_input":
            inputs.append((_tensor_name(value.field("arg")), None))
            continue
        if kind == "parameter":
            weight = Weight(value.field("parameter_name").text(), is_constant=False)
        elif kind == "buffer":
            persistent = value.field("persistent").boolean()
            weight = Weight(value.field("buffer_name").text(), is_constant=not persistent)
        elif kind == "tensor_constant":
            weight = Weight(value.field("tensor_constant_name").text(), is_constant=True)
        else:
            raise TowerError(f"{spec.where}: an input of kind {kind!r} is not allowed in a tower")
        inputs.append((value.field("arg").field("name").text(), weight))
    names = [_tensor_name(argument) for argument in graph.field("inputs").elements()]
    if names != [name for name, _ in inputs]:
        raise TowerError(f"{graph.where}: the graph's inputs are not those of its signature")
    return tuple(inputs)


def _width(graph: Element, name: str) -> int | None:
    """Last size of an input at export, or None if the file does not record it."""
    try:
        sizes = graph.field("tensor_values").field(name).field("sizes").elements()
        kind, size = sizes[-1].union()
        return size.count() if kind == "as_int" else None
    except (TowerError, IndexError):
        return None  # used in messages only


def _parse_outputs(graph: Element, signature: Element) -> tuple[str, ...]:
    outputs = []
    for spec in signature.field("output_specs").elements():
        kind, value = spec.union()
        if kind != "user_output":
            raise TowerError(f"{spec.where}: an output of kind {kind!r} is not allowed in a tower")
        outputs.append(_tensor_name(value.field("arg")))
    if outputs != [_tensor_name(argument) for argument in graph.field("outputs").elements()]:
        raise TowerError(f"{graph.where}: the graph's outputs are not those of its signature")
    return tuple(outputs)


def _tensor_name(argument: Element) -> str:
    kind, value = argument.union()
    if kind != "as_tensor":
        raise TowerError(f"{argument.where}: expected a tensor, got an argument of kind {kind!r}")
    return value.field("name").text()


def _parse_call(node: Element, graph: Graph, defined: dict[str, Node], called: str) -> None:
    found = ALLOWED[node.field("target").text()]
    expected = _arguments(found)
    positional: list[Argument] = []
    keyword: dict[str, Argument] = {}
    for argument in node.field("inputs").elements():
        name, kind = argument.field("name"), argument.field("kind").integer()
        value = parse_argument(argument.field("arg"), defined)
        if expected is None:
            # Python's operators also repeat lists and format strings, so only numbers are allowed.
            if kind != _POSITIONAL or not isinstance(value, Node | bool | int | float):
                raise argument.refuse("a positional number")
            positional.append(value)
            continue
        if name.text() in _TRAINING_ARGUMENTS and value != _TRAINING_ARGUMENTS[name.text()]:
            raise argument.refuse(f"{name.text()}={_TRAINING_ARGUMENTS[name.text()]} (inference)")
        if kind == _KEYWORD and name.text() in expected and name.text() not in keyword:
            keyword[name.text()] = value
        elif kind == _POSITIONAL and name.text() == dict(enumerate(expected)).get(len(positional)):
            positional.append(value)
        else:
            raise argument.refuse(f"an argument of {node.field('target').text()} in its place")
        _check_coded(argument, value, expected[name.text()])
    found = _safe(found, positional, keyword)
    results = _parse_results(node.field("outputs"))
    made = graph.create_node("call_function", found, tuple(positional), keyword, called)
    if isinstance(results, str):
        _define(results, made, defined, node.where)
        return
    for at, result in enumerate(results):
        if result is not None:
            item = graph.call_function(operator.getitem, (made, at))
            _define(result, item, defined, node.where)


def _check_coded(argument: Element, value: Argument, coded: type | None) -> None:
    if coded is not None and value is not None and not isinstance(value, coded):
        raise argument.refuse(f"{argument.field('name').text()} as a {coded.__name__}")


def _safe(
    found: Operator, positional: Sequence[Argument], keyword: dict[str, Argument]
) -> Operator:
    """An operator that ends no process; takes arguments away that it does not have."""
    if found not in MODE_DIVISIONS or keyword.get("rounding_mode") != "trunc":
        return found
    del keyword["rounding_mode"]
    return TRUNC_DIVIDE if isinstance(positional[-1], Node) else TRUNC_DIVIDE_NUMBER


def _arguments(found: Operator) -> dict[str, type | None] | None:
    """Types in `_CODED` of an operator's arguments by name; None for Python's operators."""
    if not isinstance(found, torch._ops.OpOverload):
        return None
    return {
        argument.name: _CODED.get(str(argument.real_type).removeprefix("Optional[").rstrip("]"))
        for argument in found._schema.arguments
    }


def _parse_results(outputs: Element) -> str | tuple[str | None, ...]:
    results: list[str | None] = []
    for output in outputs.elements():
        kind, value = output.union()
        if kind == "as_tensors" and len(outputs.elements()) == 1:
            return tuple(tensor.field("name").text() for tensor in value.elements())
        if kind == "as_none":
            results.append(None)
        elif kind == "as_tensor":
            results.append(value.field("name").text())
        elif kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            results.append(value.field("as_name").text())
        else:
            raise TowerError(f"{output.where}: a result of kind {kind!r} is not allowed in a tower")
    return results[0] if len(results) == 1 and results[0] is not None else tuple(results)
