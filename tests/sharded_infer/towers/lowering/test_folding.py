import torch
from torch import Tensor, nn

from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.canonical_forms import fold_weights
from sharded_infer.towers.lowering.constants import constant_of
from sharded_infer.towers.tower import export_tower


class CrossAttention(nn.Module):
    """Its queries come from the first vector, keys and values from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, embeddings: Tensor) -> Tensor:
        first, others = embeddings.view(-1, 4, 8).split([1, 3], dim=1)
        attended: Tensor = self.attention(first, others, others)[0]
        return attended.sum((1, 2))


def test_the_weights_of_an_attentions_queries_and_keys_are_constants() -> None:
    torch.manual_seed(0)
    module = CrossAttention().eval()
    exported = export_tower(
        module, dense={}, embedding_width=32, outputs=("score",), precision=Precision.FP32
    )
    program = exported.module()
    products = program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    constant = [constant_of(program, node.args[1]) is not None for node in products]
    assert constant == [False, False, True]
    assert fold_weights(program) == 4
    found = [constant_of(program, node.args[1]) for node in products]
    assert [None if one is None else tuple(one.shape) for one in found] == [(8, 8), (16, 8), (8, 8)]
    inputs = torch.randn(5, 32)
    torch.testing.assert_close(program(inputs)[0], module(inputs))
    assert fold_weights(program) == 0
