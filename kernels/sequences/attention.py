"""Attention in one compiled pass, for small heads.

    scores = query @ key.T * scale + bias
    weights = softmax(scores)               or silu(scores)
    weights = 0                             where the mask is true
    out = weights @ value / divisor

torch writes the scores of all queries, and reads them once for each operator. The compiled pass
(`native/abi/attention.h`) has those of six queries in the cache at a time, and leaves out keys
that all of them ignore. A result depends on its own query alone, to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from kernels.abi import attention as abi
from kernels.abi.attention import Weights
from kernels.dense_step import tensor_address
from kernels.errors import InputError
from kernels.machine import InstructionSet, chosen_set

_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Attention:
    """The pass, prepared for its options; thread-safe.

    Attributes:
        scale: of the scores; None: `1 / sqrt(width)`.
        divisor: of the results.
        causal: a query ignores the keys behind its own position.
        instruction_set: None takes the fastest.

    Raises:
        InputError: the machine lacks the instruction set.
    """

    weights: Weights = Weights.SOFTMAX
    scale: float | None = None
    divisor: float = 1.0
    causal: bool = False
    instruction_set: InstructionSet | None = None
    _set: InstructionSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Once: asking for it takes as long as a small attention.
        chosen = chosen_set(self.instruction_set, "attention")
        object.__setattr__(self, "_set", chosen)

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Tensor:
        """Runs the pass.

        Args:
            query: fp32 `[B, H, Q, d]`.
            key: fp32 `[B, H, L, d]`, L at least 1.
            value: fp32 `[B, H, L, n]`.
            bias: fp32, of a shape that broadcasts to `[B, H, Q, L]`.
            mask: bool, likewise.
            first: int64 `[B]`, from 0 to L - 1: the position of the first query among the keys,
                for a causal pass; None: 0.

        Returns:
            fp32 `[B, H, Q, n]`; `transpose(1, 2)` is without gaps.
        """
        tensors = query, key, value
        if not _fit(*tensors, bias, mask):
            return self.by_torch(query, key, value, bias, mask, first)
        samples, heads, queries, width = query.shape
        keys, value_width = value.shape[2:]
        read = list(map(_side_by_side, tensors))
        addresses = [one.data_ptr() for one in read]
        strides = [stride for one in read for stride in one.stride()[:3]]
        sizes = samples, heads, queries, keys, width, value_width
        return self._run(addresses, strides, bias, mask, first, sizes).transpose(1, 2)

    def of_heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        first: Tensor | None = None,
        *,
        heads: int,
        columns: Sequence[tuple[int, int]],
    ) -> Tensor:
        """Runs the pass on rows whose columns are those of all heads, side by side.

        Args:
            query: fp32 `[B, Q, any]`.
            key: fp32 `[B, L, any]`.
            value: fp32 `[B, L, any]`.
            bias, mask, first: as of a call.
            columns: of the queries, the keys and the values, the first one and the number in a
                head.

        Returns:
            fp32 `[B, Q, H * n]`.

        Raises:
            InputError: a tensor has fewer columns.
        """
        samples, queries, _ = query.shape
        length = key.shape[1]
        scores = samples, heads, queries, length
        fits = key.shape[:2] == value.shape[:2] == (samples, length) and length > 0
        addresses: list[int] = []
        strides: list[int] = []
        for one, (begin, width) in zip((query, key, value), columns, strict=True):
            if begin + heads * width > one.shape[2]:
                raise InputError(
                    f"attention: expected {heads} heads of {width} columns from column {begin} on, "
                    f"got {one.shape[2]} columns"
                )
            sample, row, column = one.stride()
            fits = fits and column == 1 and one.dtype is torch.float32
            addresses.append(one.data_ptr() + _FLOAT_BYTES * begin)
            strides += (sample, width, row)
        if not fits or not _added_fit(bias, mask, scores):
            parts = zip((query, key, value), columns, strict=True)
            turned = (_heads_of(one, heads, *chosen).transpose(1, 2) for one, chosen in parts)
            query, key, value = turned
            return self(query, key, value, bias, mask, first).transpose(1, 2).flatten(2)
        width, value_width = columns[0][1], columns[2][1]
        sizes = (*scores, width, value_width)
        made = self._run(addresses, strides, bias, mask, first, sizes)
        return made.view(samples, queries, heads * value_width)

    def _run(
        self,
        addresses: list[int],
        strides: list[int],
        bias: Tensor | None,
        mask: Tensor | None,
        first: Tensor | None,
        sizes: tuple[int, int, int, int, int, int],
    ) -> Tensor:
        """Calls the library: fp32 `[B, Q, H, n]`, without gaps.

        `strides` are by sample, head and row; `sizes` samples, heads, queries, keys, width,
        value_width.
        """
        samples, heads, queries, _, width, value_width = sizes
        held = []
        for one in (bias, mask):
            if one is not None:
                one = _side_by_side(one.expand(sizes[:4]))
                held.append(one)
            addresses.append(tensor_address(one))  # type: ignore[arg-type]
            strides += (0, 0, 0) if one is None else one.stride()[:3]
        out = torch.empty(samples, queries, heads, value_width)
        call = abi.Attention(
            *addresses,
            tensor_address(first),
            out.data_ptr(),
            None,
            *strides,
            *sizes,
            width**-0.5 if self.scale is None else self.scale,
            self.divisor,
            self.weights,
            self.causal,
        )
        space = torch.empty(abi.attention_space(call))
        call.space = space.data_ptr()
        abi.attention(self._set, call)
        return out

    def fields(self, heads: int, width: int, value_width: int) -> abi.Attention:
        """The pass for other compiled code: without tensors, of rows with all heads' columns."""
        made = abi.Attention()
        made.query_head = made.key_head = width
        made.value_head = value_width
        made.heads, made.width, made.value_width = heads, width, value_width
        made.scale = width**-0.5 if self.scale is None else self.scale
        made.divisor, made.weights, made.causal = self.divisor, self.weights, self.causal
        return made

    def by_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
        first: Tensor | None = None,
    ) -> Tensor:
        """The reference in torch's operators, of any floating-point dtype."""
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = query @ key.transpose(-2, -1) * scale
        scores = scores if bias is None else scores + bias
        positions = torch.arange(scores.shape[-2]).unsqueeze(1)
        if first is not None:
            positions = positions + first.view(-1, 1, 1, 1)
        seen = torch.arange(scores.shape[-1]) <= positions
        if self.weights is Weights.SOFTMAX:
            scores = scores.masked_fill(~seen, -torch.inf) if self.causal else scores
            weights = scores.softmax(-1)
        else:
            weights = torch.nn.functional.silu(scores)
            weights = weights.masked_fill(~seen, 0.0) if self.causal else weights
        weights = weights if mask is None else weights.masked_fill(mask, 0.0)
        return weights @ value / self.divisor


def _fit(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None
) -> bool:
    """True if the compiled pass can read these; torch broadcasts or converts others."""
    if any(one.dtype is not torch.float32 or one.dim() != 4 for one in (query, key, value)):
        return False
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3] or not key.shape[2]:
        return False
    if query.shape[3] != key.shape[3]:
        return False
    scores = *query.shape[:3], key.shape[2]
    return _added_fit(bias, mask, scores)


def _heads_of(rows: Tensor, heads: int, first: int, width: int) -> Tensor:
    chosen = rows[..., first : first + heads * width]
    return chosen.reshape(*chosen.shape[:2], heads, width)


def _added_fit(bias: Tensor | None, mask: Tensor | None, scores: tuple[int, ...]) -> bool:
    return (bias is None or (bias.dtype is torch.float32 and _broadcasts(bias, scores))) and (
        mask is None or (mask.dtype is torch.bool and _broadcasts(mask, scores))
    )


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    backwards = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(own in (1, size) for own, size in backwards)


def _side_by_side(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
