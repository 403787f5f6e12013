from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Interpreter

from sharded_infer.errors import TowerError
from sharded_infer.towers.program import size_limit
from sharded_infer.towers.program.operators import ALLOWED, TRUNC_DIVIDE
from sharded_infer.towers.program.size_limit import BOUNDED, BoundedProgram
from tests.support.fresh_process import run_alone

_ATEN = torch.ops.aten
_LARGE = 2**20
# Operators whose results are bounded by torch's functions of shapes alone.
UNBOUNDED = frozenset((
    "bilinear", "conv1d", "conv2d", "diag_embed", "einsum", "eye", "linspace", "one_hot",
    "repeat_interleave", "tril_indices", "triu_indices", "unfold",
))  # fmt: skip


def program_of(operator: Any, *args: Any, **kwargs: Any) -> GraphModule:
    """One operator; tensors among its arguments are constants."""
    graph, root = Graph(), nn.Module()

    def constant(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return [constant(one) for one in value] if isinstance(value, list) else value
        name = f"constant{len(list(root.buffers()))}"
        root.register_buffer(name, value)
        return graph.get_attr(name)

    arguments = [constant(value) for value in args]
    named = {name: constant(value) for name, value in kwargs.items()}
    graph.output((graph.call_function(operator, tuple(arguments), named),))
    return GraphModule(root, graph)


def test_the_bound_of_each_allowed_operator_is_known_or_said_to_be_unknown() -> None:
    names = {
        operator.overloadpacket.__name__
        for operator in (*ALLOWED.values(), TRUNC_DIVIDE)
        if isinstance(operator, torch._ops.OpOverload)
    }
    assert names == {*BOUNDED, *UNBOUNDED} and not UNBOUNDED.intersection(BOUNDED)


@pytest.mark.parametrize(
    ("operator", "args", "kwargs"),
    [
        (_ATEN.full.default, ([_LARGE, _LARGE], 1.0), {}),
        (_ATEN.zeros.default, ([_LARGE, _LARGE],), {}),
        (_ATEN.new_zeros.default, (torch.zeros(1), [_LARGE, _LARGE]), {}),
        (_ATEN.expand.default, (torch.zeros(2, 1), [_LARGE, -1, _LARGE]), {}),
        (_ATEN.repeat.default, (torch.zeros(2), [_LARGE, _LARGE]), {}),
        (_ATEN.tile.default, (torch.zeros(2), [_LARGE, _LARGE]), {}),
        (_ATEN.constant_pad_nd.default, (torch.zeros(1, 1), [0, _LARGE, _LARGE, 0]), {}),
        (_ATEN.arange.default, (2**40,), {}),
        (_ATEN.arange.start_step, (0, 1, 2.0**-40), {}),
        (_ATEN.eye.default, (_LARGE,), {}),
        (_ATEN.one_hot.default, (torch.zeros(4, dtype=torch.long), 2**40), {}),
        (_ATEN.diag_embed.default, (torch.zeros(_LARGE),), {}),
        (_ATEN.repeat_interleave.self_int, (torch.zeros(4), 2**40), {}),
        (_ATEN.tril_indices.default, (_LARGE, _LARGE), {}),
        (_ATEN.outer.default, (torch.zeros(_LARGE), torch.zeros(_LARGE)), {}),
        (_ATEN.add.Tensor, (torch.zeros(_LARGE, 1), torch.zeros(_LARGE)), {}),
        (_ATEN.mm.default, (torch.zeros(_LARGE, 1), torch.zeros(1, _LARGE)), {}),
        (
            _ATEN.linear.default,
            (torch.zeros(_LARGE, 1),),
            {"bias": torch.zeros(_LARGE), "weight": torch.zeros(_LARGE, 1)},
        ),
        (_ATEN.mm.default, (torch.zeros(_LARGE, 0), torch.zeros(0, _LARGE)), {}),
        (_ATEN.sum.dim_IntList, (torch.zeros(_LARGE, _LARGE, 0), [2]), {}),
        (_ATEN.einsum.default, ("i,j->ij", [torch.zeros(_LARGE), torch.zeros(_LARGE)]), {}),
        (_ATEN.bilinear.default, tuple(torch.zeros(_LARGE, 1) for _ in range(2)), {}),
        (
            _ATEN.scaled_dot_product_attention.default,
            (torch.zeros(1, 1, _LARGE, 1), torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, _LARGE)),
            {},
        ),
        (_ATEN.embedding.default, (torch.zeros(1, _LARGE), torch.zeros(_LARGE).long()), {}),
        (_ATEN.index.Tensor, (torch.zeros(1, _LARGE), [torch.zeros(_LARGE).long()]), {}),
        (_ATEN.unfold.default, (torch.zeros(_LARGE), 0, 2**19, 1), {}),
        (_ATEN.conv1d.default, (torch.zeros(1, 1, _LARGE), torch.zeros(_LARGE, 1, 1)), {}),
    ],
)
def test_a_tensor_that_is_too_large_is_refused_before_it_is_made(
    operator: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    if operator is _ATEN.bilinear.default:
        args = (*args, torch.zeros(2**11, 1, 1))
    with pytest.raises(TowerError, match=r"^tower: operator .* makes a tensor \["):
        BoundedProgram(program_of(operator, *args, **kwargs), "tower")()


_SQUARE = torch.zeros(2**7, 2**7)


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        (_ATEN.mm.default, (_SQUARE, _SQUARE)),
        (_ATEN.linear.default, (_SQUARE, _SQUARE)),
        (_ATEN.addmm.default, (torch.zeros(1), _SQUARE, _SQUARE)),
        (_ATEN.bmm.default, (_SQUARE[None], _SQUARE[None])),
        (_ATEN.einsum.default, ("ij,kj->ik", [_SQUARE, _SQUARE])),
        (_ATEN.tensordot.default, (_SQUARE, _SQUARE, [1], [0])),
        (_ATEN.scaled_dot_product_attention.default, (_SQUARE[None, None, :, :64],) * 3),
        (_ATEN.conv1d.default, (_SQUARE[None], torch.zeros(2**7, 2**7, 1))),
        (_ATEN.bilinear.default, (_SQUARE[:8], _SQUARE[:8], torch.zeros(2**4, 2**7, 2**7))),
    ],
    ids=[
        *["mm", "linear", "addmm", "bmm", "einsum", "tensordot", "attention", "conv1d", "bilinear"]
    ],
)
def test_a_product_of_too_much_work_is_refused_before_it_is_computed(
    operator: Any, args: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = program_of(operator, *args)
    monkeypatch.setattr(size_limit, "MOST_WORK", 2**21)
    BoundedProgram(program, "tower")()
    monkeypatch.setattr(size_limit, "MOST_WORK", 2**21 - 1)
    computed = Mock()
    monkeypatch.setattr(Interpreter, "call_function", computed)
    expected = rf"^tower: up to operator {operator} the program computes 2\.1e\+06 "
    with pytest.raises(TowerError, match=expected):
        BoundedProgram(program, "tower")()
    computed.assert_not_called()


@pytest.mark.parametrize(
    ("operator", "shape", "args"),
    [
        (_ATEN.tensor_split.sections, (3,), (2**16 + 1,)),
        (_ATEN.tensor_split.sections, (0,), (2**62,)),
        (_ATEN.chunk.default, (0,), (2**62,)),
        (_ATEN.split.Tensor, (2**16 + 1,), (1,)),
        (_ATEN.unbind.int, (2**16 + 1,), ()),
    ],
)
def test_a_list_of_too_many_tensors_is_refused(
    operator: Any, shape: Sequence[int], args: Sequence[int]
) -> None:
    with pytest.raises(TowerError, match=rf"operator {operator} makes .* tensors, expected at mo"):
        BoundedProgram(program_of(operator, torch.zeros(shape), *args), "tower")()
    BoundedProgram(program_of(operator, torch.zeros(3), *(min(arg, 3) for arg in args)), "tower")()


def test_the_work_of_all_operators_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, root = Graph(), nn.Module()
    rows = graph.call_function(_ATEN.expand.default, (graph.get_attr("zero"), [2**10]))
    sums = [graph.call_function(_ATEN.sum.default, (rows,)) for _ in range(4)]
    graph.output(tuple(sums))
    root.register_buffer("zero", torch.zeros(1))
    monkeypatch.setattr(size_limit, "MOST_WORK", 4 * 64 * 2**10)
    BoundedProgram(GraphModule(root, graph), "tower")()
    monkeypatch.setattr(size_limit, "MOST_WORK", 4 * 64 * 2**10 - 1)
    with pytest.raises(TowerError, match=r"operator aten\.sum\.default .* computes 2\.6e"):
        BoundedProgram(GraphModule(root, graph), "tower")()


def test_the_memory_of_results_needed_together_is_bounded() -> None:
    def program(sums: int) -> GraphModule:
        graph, root = Graph(), nn.Module()
        rows = graph.get_attr("rows")
        for _ in range(sums):
            rows = graph.call_function(_ATEN.add.Tensor, (rows, 1))
        large = [graph.call_function(_ATEN.zeros.default, ([2**20],)) for _ in range(3)]
        graph.output((rows, *large))
        root.register_buffer("rows", torch.zeros(2**20))
        return GraphModule(root, graph)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(size_limit, "MOST_BYTES", 4 * 4 * 2**20)
        # Of a chain of results two are needed at the same time.
        BoundedProgram(program(20), "tower")()
        patched.setattr(size_limit, "MOST_BYTES", 4 * 4 * 2**20 - 1)
        with pytest.raises(
            TowerError,
            match=r"operator aten\.zeros\.default, the program needs results of 16777216",
        ):
            BoundedProgram(program(20), "tower")()


def test_a_tensor_after_one_whose_size_follows_from_values_is_refused() -> None:
    graph, root = Graph(), nn.Module()
    rows = graph.placeholder("rows")
    chosen = graph.call_function(_ATEN.index.Tensor, (rows, [graph.get_attr("mask")]))
    large = graph.call_function(_ATEN.full.default, ([_LARGE, _LARGE], 1.0))
    graph.output((chosen, large))
    root.register_buffer("mask", torch.tensor([True, False]))
    with pytest.raises(TowerError, match=r"operator aten\.full\.default makes a tensor"):
        BoundedProgram(GraphModule(root, graph), "tower")(torch.zeros(2))


def test_usual_operators_run_without_torchs_compiler_which_can_be_imported_later() -> None:
    found = run_alone("""
import json, sys
import torch
from torch import nn
from sharded_infer.towers.program.size_limit import BoundedProgram
aten = torch.ops.aten
graph = torch.fx.Graph()
rows = graph.placeholder("rows")
rows = graph.call_function(aten.to.dtype, (rows, torch.bfloat16))
summed = graph.call_function(aten.addmm.default, (graph.get_attr("bias"), rows, rows))
summed = graph.call_function(aten.expand.default, (summed, [2, -1, -1]))
scores = graph.call_function(aten.scaled_dot_product_attention.default, (summed,) * 3)
graph.output((graph.call_function(aten.relu.default, (scores,)),))
root = nn.Module()
root.register_buffer("bias", torch.zeros(3, dtype=torch.bfloat16))
BoundedProgram(torch.fx.GraphModule(root, graph), "tower")(torch.zeros(3, 3))
before = "torch._dynamo" in sys.modules
compiled = torch.compile(torch.relu, backend="eager")
print(json.dumps([before, compiled(torch.ones(2)).tolist()]))
""")
    assert found == [False, [1.0, 1.0]]
