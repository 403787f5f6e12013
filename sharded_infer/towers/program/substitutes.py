"""Substitutes for operators that a tower cannot call and `export_tower` does not rewrite."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_STATIC: Final = "a result's size must not depend on values: use torch.where and a mask"
_RANDOM: Final = "scores must not be random: draw the numbers once and register them as a buffer"
_SORTED: Final = "sort(dim) and select the position"
_BAG: Final = "nn.Embedding and sum or mean over the bag's dimension"

# From an operator's name, without its overload, to an equivalent.
SUBSTITUTES: Final[Mapping[str, str]] = MappingProxyType({
    "adaptive_max_pool1d": "nn.AdaptiveMaxPool1d(1), nn.MaxPool1d, or amax of slices",
    "adaptive_max_pool2d": "nn.AdaptiveMaxPool2d(1), nn.MaxPool2d, or amax of slices",
    "bernoulli": _RANDOM,
    "_cdist_forward": "the norm of a.unsqueeze(-2) - b.unsqueeze(-3)",
    "cdist": "the norm of a.unsqueeze(-2) - b.unsqueeze(-3)",
    "cond": "torch.where over both results",
    "cummax": "amax over a lower triangular mask, with masked_fill",
    "cummin": "amin over a lower triangular mask, with masked_fill",
    "_embedding_bag_forward_only": _BAG,
    "_embedding_bag": _BAG,
    "embedding_bag": _BAG,
    "histc": "bucketize, one_hot and a sum",
    "bincount": "one_hot and a sum",
    "kthvalue": _SORTED,
    "logcumsumexp": "logsumexp over a lower triangular mask, with masked_fill",
    "masked_select": _STATIC,
    "median": _SORTED,
    "mode": "sort and comparisons",
    "multinomial": _RANDOM,
    "nonzero": _STATIC,
    "normal": _RANDOM,
    "rand": _RANDOM,
    "rand_like": _RANDOM,
    "randint": _RANDOM,
    "randn": _RANDOM,
    "randn_like": _RANDOM,
    "randperm": _RANDOM,
    "scatter_reduce": 'scatter_add, which is reduce="sum"',
    "unique": _STATIC,
    "_unique2": _STATIC,
    "unique_dim": _STATIC,
    "while_loop": "a Python loop of a fixed number of steps",
})  # fmt: skip


def instead_of(target: str) -> str:
    """End of an error message: a substitute for an operator such as `aten.median.dim`.

    Empty if none is known. The prefix `torch.ops.` is optional.
    """
    steps = target.removeprefix("torch.ops.").split(".")
    found = SUBSTITUTES.get(steps[1]) if len(steps) > 1 else None
    return f"; instead: {found}" if found else ""
