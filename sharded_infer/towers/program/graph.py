"""The graph of a stored program: parsed, checked in full, then built as a torch.fx module.

The source is the JSON of `torch.export.save` (torch/_export/serde/schema.py, version 8). The parser
ignores symbolic expressions, guards and other metadata, some of which torch's loader evaluates as
code.
"""

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch.fx.node import Argument as FxArgument

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.arguments import Argument, Value, parse_argument
from sharded_infer.towers.program.json_element import Element
from sharded_infer.towers.program.names import ProgramNames, parse_names
from sharded_infer.towers.program.operators import ALLOWED, ASSERTIONS, Operator
from sharded_infer.towers.program.substitutes import instead_of
from sharded_infer.towers.program.trunc_divide import (
    MODE_DIVISIONS,
    TRUNC_DIVIDE,
    TRUNC_DIVIDE_NUMBER,
)

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


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an allowed operator.

    `results` is the result's name, or a tuple of those of several results; None: an element without
    a name.
    """

    operator: Operator
    positional: tuple[Argument, ...]
    keyword: tuple[tuple[str, Argument], ...]
    results: str | tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor of the archive: its key in the weights or, if `is_constant`, in the constants."""

    key: str
    is_constant: bool


@dataclass(frozen=True, slots=True)
class TowerGraph:
    """A checked program.

    Attributes:
        inputs: name and weight of each input, in order; the weight is None for the caller's inputs.
        calls: in order of execution.
        widths: widths of the caller's inputs at export, for messages; None if not recorded.
        names: recorded names of the caller's inputs and of the outputs.
    """

    inputs: tuple[tuple[str, Weight | None], ...]
    calls: tuple[Call, ...]
    outputs: tuple[str, ...]
    widths: Mapping[str, int | None]
    names: ProgramNames

    def build(self, load: Callable[[Weight], torch.Tensor]) -> torch.fx.GraphModule:
        """Builds a module that takes the program's inputs by position and returns a tuple.

        `load` is called only for tensors that the program uses; the module holds them as buffers.
        Names in its generated source are made here (`input0`, `weight0`, `v0`), never taken from
        the file.
        """
        root, graph = torch.nn.Module(), torch.fx.Graph()
        nodes: dict[str, torch.fx.Node] = {}
        used = {name for call in self.calls for name in _references(call)} | set(self.outputs)
        user_inputs = [name for name, weight in self.inputs if weight is None]
        for i, name in enumerate(user_inputs):
            nodes[name] = graph.placeholder(f"input{i}")
            nodes[name].meta[WIDTH] = self.widths.get(name)
        for i, (name, weight) in enumerate(self.inputs):
            if weight is not None and name in used:
                root.register_buffer(f"weight{i}", load(weight))
                nodes[name] = graph.get_attr(f"weight{i}")
        for i, call in enumerate(self.calls):
            node = graph.create_node(
                "call_function",
                call.operator,
                tuple(_resolve(argument, nodes) for argument in call.positional),
                {name: _resolve(argument, nodes) for name, argument in call.keyword},
                name=f"v{i}",
            )
            if isinstance(call.results, str):
                nodes[call.results] = node
                continue
            for j, result in enumerate(call.results):
                if result is not None:
                    nodes[result] = graph.call_function(operator.getitem, (node, j))
        graph.output(tuple(nodes[name] for name in self.outputs))
        graph.eliminate_dead_code()
        built = torch.fx.GraphModule(root, graph, "TowerProgram").eval()
        built.meta[NAMES] = self.names
        return built


def _references(call: Call) -> Iterator[str]:
    for argument in (*call.positional, *(value for _, value in call.keyword)):
        for item in argument if isinstance(argument, list) else [argument]:
            if isinstance(item, Value):
                yield item.name


def _resolve(argument: Argument, nodes: dict[str, torch.fx.Node]) -> FxArgument:
    if isinstance(argument, list):
        return [_resolve(item, nodes) for item in argument]
    return nodes[argument.name] if isinstance(argument, Value) else argument


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
    defined: set[str] = set()
    for name, _ in inputs:
        _define(name, defined, graph.where)
    calls = tuple(
        _parse_call(node, defined)
        for node in nodes
        if node.field("target").text() not in ASSERTIONS
    )
    outputs = _parse_outputs(graph, module.field("signature"))
    for name in outputs:
        if name not in defined:
            raise TowerError(f"{graph.where}: output {name!r} is not defined")
    widths = {name: _width(graph, name) for name, weight in inputs if weight is None}
    names = parse_names(module, len(widths), len(outputs))
    return TowerGraph(inputs, calls, outputs, widths, names)


def _check_operator(target: Element, where: str) -> None:
    if target.text() not in ALLOWED and target.text() not in ASSERTIONS:
        raise TowerError(
            f"{where}: operator {target.text()!r} is not allowed in a tower"
            f"{instead_of(target.text()) or _REWRITTEN}"
        )


def _define(name: str, defined: set[str], where: str) -> None:
    if name in defined:
        raise TowerError(f"{where}: the name {name!r} is defined twice")
    defined.add(name)


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


def _parse_call(node: Element, defined: set[str]) -> Call:
    found = ALLOWED[node.field("target").text()]
    expected = _argument_names(found)
    positional: list[Argument] = []
    keyword: dict[str, Argument] = {}
    for argument in node.field("inputs").elements():
        name, kind = argument.field("name"), argument.field("kind").integer()
        value = parse_argument(argument.field("arg"), defined)
        if expected is None:
            # Python's operators also repeat lists and format strings, so only numbers are allowed.
            if kind != _POSITIONAL or not isinstance(value, Value | bool | int | float):
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
    results = _parse_results(node.field("outputs"))
    for result in (results,) if isinstance(results, str) else results:
        if result is not None:
            _define(result, defined, node.where)
    if found in MODE_DIVISIONS and keyword.get("rounding_mode") == "trunc":
        found = TRUNC_DIVIDE if isinstance(positional[-1], Value) else TRUNC_DIVIDE_NUMBER
        del keyword["rounding_mode"]
    return Call(found, tuple(positional), tuple(keyword.items()), results)


def _argument_names(found: Operator) -> list[str] | None:
    """Argument names of an operator's schema; None for Python's operators."""
    if not isinstance(found, torch._ops.OpOverload):
        return None
    return [argument.name for argument in found._schema.arguments]


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
