"""Shapes of a program, computed before it runs."""

from tests.support.fresh_process import run_alone


def test_shapes_are_computed_without_torchs_compiler_which_can_be_imported_later() -> None:
    found = run_alone("""
import json, sys
import torch
from torch import nn
from sharded_infer.towers.program.size_limit import check_sizes
graph = torch.fx.Graph()
rows = graph.placeholder("rows")
summed = graph.call_function(torch.ops.aten.addmm.default, (graph.get_attr("bias"), rows, rows))
graph.output(graph.call_function(torch.ops.aten.relu.default, (summed,)))
root = nn.Module()
root.register_buffer("bias", torch.zeros(3))
check_sizes(torch.fx.GraphModule(root, graph), [torch.zeros(3, 3)], "tower")
before = "torch._dynamo" in sys.modules
compiled = torch.compile(torch.relu, backend="eager")
print(json.dumps([before, compiled(torch.ones(2)).tolist()]))
""")
    assert found == [False, [1.0, 1.0]]
