"""Operators that passes treat alike: torch has several spellings of most."""

from collections.abc import Mapping
from typing import Any, Final

import torch

_aten = torch.ops.aten

# The same numbers in another shape.
RESHAPES: Final = (
    *(_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default),
    *(_aten.flatten.using_ints, _aten.unflatten.int),
)
# The same numbers in the same shape.
COPIES: Final = (_aten.clone.default, _aten.contiguous.default, _aten.alias.default)
# Several tensors of one.
DIVISIONS: Final = (
    *(_aten.chunk.default, _aten.split.Tensor, _aten.split.sizes),
    *(_aten.split_with_sizes.default, _aten.unbind.int),
)
ACTIVATIONS: Final = (_aten.relu.default, _aten.sigmoid.default, _aten.silu.default)
CLAMPS: Final = (_aten.clamp.default, _aten.clamp_min.default, _aten.clamp_max.default)
AND: Final = (_aten.logical_and.default, _aten.bitwise_and.Tensor)
OR: Final = (_aten.logical_or.default, _aten.bitwise_or.Tensor)
NOT: Final = (_aten.logical_not.default, _aten.bitwise_not.default)
# By their names in `operator`.
COMPARISONS: Final[Mapping[str, tuple[Any, ...]]] = {
    name: (getattr(_aten, name).Tensor, getattr(_aten, name).Scalar)
    for name in ("ge", "gt", "le", "lt", "eq", "ne")
}
ATTENTION_ARGUMENTS: Final = (
    *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
)
