"""Int8 towers: inner products of integers, everything else in fp32.

The search of a product's scales minimises the squared error on held-out samples, since a range
never looks too narrow on the samples that it was taken from:

    the columns' scales   s_k = max|x_k|^a / max|w_k|^(1 - a) for a few a (Xiao et al. 2023,
                          "SmoothQuant", equation 4)
    the range of levels   a multiple of the samples' range of x / s; values beyond are clipped
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from sharded_infer.errors import InputError, TowerError
from sharded_infer.towers.lowering.constants import add_constant, constant_of
from sharded_infer.towers.lowering.precision import copy_program, inner_products
from sharded_infer.towers.lowering.rewriting import remove_unused
from sharded_infer.towers.program.int8_linear import INT8_LINEAR, int8_linear

_LINEAR: Final = torch.ops.aten.linear.default
# Narrower products save no relevant time, and average their rounding over few numbers.
_LEAST_WIDTH: Final = 64
_MIGRATIONS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_RANGES: Final = (1.25, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
_WEIGHT_LEVELS: Final = 127
_LEVELS: Final = 255


def lower_to_int8(module: torch.nn.Module, inputs: Sequence[Tensor]) -> torch.nn.Module:
    """A module that computes the inner products of `module` in int8.

    Args:
        module: a torch.fx GraphModule of aten operators; not changed.
        inputs: samples of its inputs, fp32 `[S, width]` each, from which the scales are chosen.

    Returns:
        A module in which each product with a constant fp32 weight of at least 64 rows and columns,
            and with another product after it, is an `int8_linear`.

    Raises:
        TowerError: `module` is no such graph, or has no product to lower.
        InputError: a weight, or an input of a product, is not finite.
    """
    if not isinstance(module, GraphModule):
        raise TowerError(f"expected a torch.fx.GraphModule, got {type(module).__name__}")
    lowered = copy_program(module)
    constant = {
        node: weight
        for node in inner_products(lowered.graph)
        if (weight := _weight(lowered, node)) is not None
    }
    recurrent = {_weight_name(node) for node in constant if _is_recurrent(node)}
    products = {
        node.name: weight
        for node, weight in constant.items()
        if _weight_name(node) not in recurrent
    }
    if not products:
        raise TowerError(
            "int8: the tower has no product to lower: expected one of at least "
            f"{_LEAST_WIDTH} rows and columns with a constant weight, before another one, and not "
            "of a recurrent layer"
        )
    seen = _Recorder(lowered, products)
    with torch.no_grad():
        seen.run(*inputs)
    for node in list(lowered.graph.nodes):
        if node.name in products:
            _replace(lowered, node, products[node.name], seen.samples[node.name])
    remove_unused(lowered)
    return _Positional(lowered)


class _Positional(torch.nn.Module):
    """Takes any number of inputs by position, like export's dynamic shapes."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__()
        self.program = program

    def forward(self, *inputs: Tensor) -> Any:
        return self.program(*inputs)


def _weight(module: GraphModule, node: Node) -> Tensor | None:
    weight = constant_of(module, node.args[1]) if node.target is _LINEAR else None
    if weight is None or weight.dtype is not torch.float32 or weight.dim() != 2:
        return None
    return weight.detach() if min(weight.shape) >= _LEAST_WIDTH else None


def _weight_name(product: Node) -> str:
    return str(getattr(product.args[1], "target", ""))


def _is_recurrent(product: Node) -> bool:
    """True if a product's result goes through a product with the same weight again.

    Rounding errors would add up over the steps, each with its own integers.
    """
    seen, waiting = {product}, [product]
    while waiting:
        for user in waiting.pop().users:
            if user.target is _LINEAR and _weight_name(user) == _weight_name(product):
                return True
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return False


def _replace(module: GraphModule, node: Node, weight: Tensor, samples: Tensor) -> None:
    try:
        made = calibrate_product(weight, samples)
    except InputError as error:
        raise InputError(f"tower: product {node.name}: {error}") from error
    source, bias = node.args[0], (*node.args, None)[2]
    graph = module.graph
    with graph.inserting_before(node):
        held, scale, inverse_scale = (
            add_constant(module, f"_int8_{kind}", tensor, persistent=True)
            for kind, tensor in (
                ("weight", made.weight),
                ("weight_scale", made.weight_scale),
                ("inverse_scale", made.inverse_scale),
            )
        )
        product = graph.call_function(
            INT8_LINEAR, (source, held, scale, bias, inverse_scale, made.zero_point)
        )
    node.replace_all_uses_with(product)
    graph.erase_node(node)


class _Recorder(Interpreter):
    """A run that records the inputs of products, fp32 `[S, K]` by name."""

    def __init__(self, program: GraphModule, products: Mapping[str, Tensor]) -> None:
        super().__init__(program)
        self._products = products
        self.samples: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        if n.name in self._products:
            (given, *_), _ = self.fetch_args_kwargs_from_env(n)
            self.samples[n.name] = given.flatten(0, -2).to(torch.float32)
        return super().run_node(n)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight:
    """A product's integers, as arguments of `int8_linear`, with its shapes and dtypes."""

    weight: Tensor
    weight_scale: Tensor
    inverse_scale: Tensor
    zero_point: int

    def apply(self, x: Tensor) -> Tensor:
        """The product without its bias: fp32 `[..., K]` to fp32 `[..., N]`."""
        made: Tensor = int8_linear(
            x, self.weight, self.weight_scale, None, self.inverse_scale, self.zero_point
        )
        return made


def calibrate_product(weight: Tensor, samples: Tensor) -> Int8Weight:
    """The quantization of fp32 `[N, K]` with the least squared error on fp32 `[S, K]` inputs.

    Raises:
        InputError: the weight or a sample is not finite.
    """
    if not (torch.isfinite(weight).all() and torch.isfinite(samples).all()):
        raise InputError("int8: expected finite weights and samples")
    kept, held_out = (samples[0::2], samples[1::2]) if len(samples) > 1 else (samples, samples)
    expected = torch.nn.functional.linear(held_out, weight)

    def tried(migration: float, width: float) -> tuple[float, Int8Weight]:
        made = _quantized(weight, kept, migration, width)
        return float((made.apply(held_out) - expected).square_().mean()), made

    migration = min(_MIGRATIONS, key=lambda one: tried(one, 1.0)[0])
    # The measured candidate is returned: another range, of all samples, could be a bad one.
    return min((tried(migration, width) for width in _RANGES), key=lambda one: one[0])[1]


def _column_scales(weight: Tensor, samples: Tensor, migration: float) -> Tensor:
    numbers, weights = samples.abs().amax(0), weight.abs().amax(0)
    scale = numbers.pow(migration) / weights.clamp(min=1e-20).pow(1 - migration)
    # Of a column that is always 0, or that no weight reads, any scale will do.
    return torch.where((numbers > 0) & (weights > 0), scale, 1.0).clamp(1e-10, 1e10)


def _quantized(weight: Tensor, samples: Tensor, migration: float, width: float) -> Int8Weight:
    scale = _column_scales(weight, samples, migration)
    evened = samples / scale
    # 0 is always a level: a ReLU makes many of them.
    low = width * min(0.0, float(evened.min()))
    high = width * max(0.0, float(evened.max()))
    step = (high - low) / _LEVELS or 1.0
    scaled = weight * (scale * step)
    weight_scale = scaled.abs().amax(1) / _WEIGHT_LEVELS
    weight_scale = torch.where(weight_scale > 0, weight_scale, 1.0)
    levels = (scaled / weight_scale[:, None]).round_().clamp_(-_WEIGHT_LEVELS, _WEIGHT_LEVELS)
    return Int8Weight(levels.to(torch.int8), weight_scale, 1.0 / (scale * step), round(-low / step))
