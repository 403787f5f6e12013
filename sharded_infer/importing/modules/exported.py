"""A whole module as one graph of pure operators."""

import io
import operator
import re
import traceback
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import CodeGen
from torch.utils import _pytree as pytree

from sharded_infer.errors import TowerError
from sharded_infer.importing.modules.example import Example, path_names
from sharded_infer.importing.modules.keyed_bags import replace_regrouping
from sharded_infer.repeats import repeated
from sharded_infer.torch_message import in_submodule, torch_message
from sharded_infer.towers.named_tower import copy_for_export

_ATEN = torch.ops.aten
# Operators that take a size and a dtype from a tensor: whether the size is an argument, and what
# they fill it with (None: an argument says it).
_FILLED = {
    _ATEN.zeros_like.default: (False, 0),
    _ATEN.ones_like.default: (False, 1),
    _ATEN.full_like.default: (False, None),
    _ATEN.new_zeros.default: (True, 0),
    _ATEN.new_ones.default: (True, 1),
    _ATEN.new_full.default: (True, None),
}
_RANDOM = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like"),
    *("bernoulli", "normal", "multinomial", "uniform"),
}
_REGROUPS = (
    "fbgemm.permute_pooled_embs.default",
    "fbgemm.permute_multi_embedding_function.default",
)
_SQUEEZES = (_ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims)
_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)\n\s+(.+)')
# Files whose lines are no lines of the module's code.
_NOT_THE_USERS = ("/torch/", "/torchrec/", str(Path(__file__).parent))
SCORE = "score"


class Called(nn.Module):
    """A module's method on the leaves of its example, with outputs `[B]` or `[B, K]` in order."""

    def __init__(self, module: nn.Module, example: Example, method: str) -> None:
        super().__init__()
        self.module = module
        self.example = example
        self.method = method
        self.outputs: tuple[str, ...] = ()
        self.dropped = 0

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        """Call the method, and flatten what it returns."""
        arguments, named = self.example.arguments(leaves)
        returned = getattr(self.module, self.method)(*arguments, **named)
        pairs, _ = pytree.tree_flatten_with_path(returned)
        # Numbers of the whole batch, such as losses, are no scores.
        scores = [pair for pair in pairs if isinstance(pair[1], Tensor) and pair[1].dim() > 0]
        if not scores:
            raise TowerError(
                f"the module returned a {type(returned).__name__}, expected a tensor [B] or "
                "[B, K], or several in a tuple, list or dict"
            )
        self.dropped = len(pairs) - len(scores)
        self.outputs = tuple(_output_name(path, len(scores)) for path, _ in scores)
        if twice := repeated(self.outputs):
            raise TowerError(f"two outputs of the module have the name {twice[0]!r}")
        return tuple(_per_sample(value) for _, value in scores)


def _output_name(path: Any, outputs: int) -> str:
    name = "_".join(re.sub(r"[^A-Za-z0-9_\-]+", "_", step) for step in path_names(path))
    if name and not name.replace("_", "").isdigit():
        return name
    return SCORE if outputs == 1 else f"{SCORE}_{name}"


def _per_sample(value: Tensor) -> Tensor:
    if value.dim() == 2 and value.shape[1] == 1:
        value = value.squeeze(1)
    elif value.dim() > 2:
        value = value.flatten(1)
    return value.float()


def called(module: nn.Module, example: Example, method: str) -> Called:
    """A copy of the module for inference, which shares its weights.

    Raises TowerError for embeddings whose rows are scaled when they are looked up.
    """
    for name, child in module.named_modules():
        if getattr(child, "max_norm", None) is not None:
            raise TowerError(
                f"submodule {name!r} has max_norm={child.max_norm}, which scales rows when they "
                "are looked up: look every row up once, so that they are scaled in place, and set "
                "it to None"
            )
    return Called(copy_for_export(module, sharing=module.parameters()), example, method)


def scores_of(module: Called, leaves: Sequence[Tensor]) -> dict[str, Tensor]:
    """The trained module's own scores, by output; TowerError if it cannot be called."""
    try:
        with torch.inference_mode():
            scores = module(*leaves)
    except TowerError:
        raise
    # A module is the user's code, and may raise anything.
    except Exception as error:
        raise TowerError(
            f"the module cannot be called on the example{in_submodule(module.module, error)}: "
            f"{torch_message(error)}"
        ) from error
    samples = len(leaves[0])
    for name, score in zip(module.outputs, scores, strict=True):
        if len(score) != samples:
            raise TowerError(
                f"output {name!r}: expected a score for each of {samples} samples, got "
                f"{list(score.shape)}"
            )
    return dict(zip(module.outputs, scores, strict=True))


def exported(module: Called) -> GraphModule:
    """The module as a graph of aten operators, for every batch size.

    Raises TowerError, naming the line of the module, for what cannot be exported.
    """
    try:
        program = _program(module, strict=False)
    except TowerError:
        raise
    except Exception as error:
        try:
            # Bytecode is read: len(x) is then a symbol, which Python's own len() is not.
            program = _program(module, strict=True)
        except Exception:
            raise TowerError(
                f"torch cannot export the module for every batch size"
                f"{in_submodule(module.module, error)}{_line_of(error)}: {torch_message(error)}"
            ) from error
    signature = program.graph_signature
    for kind, names in (
        ("buffer", signature.buffers_to_mutate),
        ("input", signature.user_inputs_to_mutate),
    ):
        for name in names.values():
            raise TowerError(
                f"the module changes its {kind} {name.removeprefix('module.')!r} when it is "
                "called: compute a new tensor instead"
            )
    checked = program.module(check_guards=False)
    checked.graph.set_codegen(CodeGen())
    plain = GraphModule(checked, checked.graph)
    plain.meta = {}
    for node in list(plain.graph.nodes):
        _normalise(plain.graph, node)
    plain.graph.eliminate_dead_code()
    plain.recompile()
    _check_outputs(plain, module.outputs)
    return plain


def _check_outputs(plain: GraphModule, outputs: Sequence[str]) -> None:
    returned: Any = plain.graph.output_node().args[0]
    for name, node in zip(outputs, returned, strict=True):
        batch, *sizes = node.meta["val"].shape
        if isinstance(batch, int) or any(isinstance(size, torch.SymInt) for size in sizes):
            raise TowerError(
                f"output {name!r}{source_line(node)}: expected a number, or equally many, for each "
                f"sample, got a size that is {'fixed' if isinstance(batch, int) else 'the batch'}"
                "; a request's samples are scored one by one"
            )


def _normalise(graph: Graph, node: Node) -> None:
    """Drop assertions, and make a node independent of strides and of a batch of one.

    Raises TowerError for random numbers, naming the line.
    """
    name = str(node.target)
    if node.op != "call_function":
        return
    if "_assert" in name or "sym_constrain" in name:
        graph.erase_node(node)
    elif "dropout" in name and len(node.args) > 2 and node.args[2] is True:
        raise TowerError(
            f"the module draws random numbers in eval mode too{source_line(node)}: dropout is "
            "always on; pass training=self.training, or use nn.Dropout"
        )
    elif operator_name(node) in _RANDOM:
        raise TowerError(
            f"the module draws random numbers when it scores{source_line(node)}: draw them once, "
            "and register them as a buffer"
        )
    elif node.target in _SQUEEZES:
        _squeeze(node)
    elif node.target is _ATEN.view.default:
        # Rows of a lookup may lie in memory in another order.
        node.target = _ATEN.reshape.default
    elif node.target in _FILLED:
        _fill(graph, node)
    elif name in _REGROUPS:
        replace_regrouping(graph, node)


def operator_name(node: Node) -> str:
    """An operator's name without its overload, such as `add`."""
    if node.target is operator.getitem:
        return "getitem"
    return str(node.target).removeprefix("aten.").split(".")[0]


def _squeeze(node: Node) -> None:
    """Name the dimensions to drop, among which a batch of one is not."""
    source: Any = node.args[0]
    sizes = source.meta["val"].shape
    asked: Any = node.args[1] if len(node.args) > 1 else range(len(sizes))
    axes = [asked] if isinstance(asked, int) else list(asked)
    chosen = [axis for axis in axes if isinstance(sizes[axis], int) and sizes[axis] == 1]
    node.target, node.args = _ATEN.squeeze.dims, (source, chosen)


def _fill(graph: Graph, node: Node) -> None:
    """Read the size alone of a tensor that another is made like."""
    source, value = node.args[0], node.meta["val"]
    is_new, number = _FILLED[node.target]  # type: ignore[index]
    with graph.inserting_before(node):
        sizes = list(node.args[1]) if is_new else list(value.shape)  # type: ignore[arg-type]
        for axis, size in enumerate(sizes):
            if isinstance(size, torch.SymInt):
                sizes[axis] = graph.call_function(_ATEN.sym_size.int, (source, axis))
                sizes[axis].meta["val"] = size
        fill = node.args[2 if is_new else 1] if number is None else number
        filled = graph.call_function(_ATEN.full.default, (sizes, fill), {"dtype": value.dtype})
    filled.meta = dict(node.meta)
    node.replace_all_uses_with(filled)
    graph.erase_node(node)


def _program(module: Called, *, strict: bool) -> ExportedProgram:
    batch = Dim("batch", min=1)
    shapes = tuple({0: batch} for _ in module.example.leaves)
    # torch prints whole graphs where it refuses one.
    printed = io.StringIO()
    with (
        torch.no_grad(),
        warnings.catch_warnings(),
        redirect_stdout(printed),
        redirect_stderr(printed),
    ):
        warnings.simplefilter("ignore")
        traced = torch.export.export(
            module, module.example.full, dynamic_shapes=(shapes,), strict=strict
        )
        program: ExportedProgram = traced.run_decompositions({})
        return program


def source_line(node: Node) -> str:
    """` (file:line: text)` of the module's code that a node comes from; empty if unknown."""
    trace = node.meta.get("stack_trace") or ""
    return _last_line(trace)


def _last_line(trace: str) -> str:
    frames = [
        frame
        for frame in _FILE_LINE.findall(trace)
        if not any(part in frame[0] for part in _NOT_THE_USERS)
    ]
    if not frames:
        return ""
    file, line, _, text = frames[-1]
    return f" ({file}:{line}: {text.strip()})"


def _line_of(error: BaseException) -> str:
    return _last_line("".join(traceback.format_exception(error)))
