"""Attention in one compiled pass, for small heads.

    scores = query @ key.T * scale + bias
    weights = softmax(scores)               or silu(scores)
    weights = 0                             where the mask is true
    out = weights @ value / divisor

torch writes the scores of all queries, and reads them once for each operator. The compiled pass
(`kernels/native/attention.h`) has those of six queries in the cache at a time, and leaves out keys
that all of them ignore. A result depends on its own query alone, to the bit.
"""

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from kernels.dense_step import tensor_address
from kernels.errors import InputError
from kernels.native_library import InstructionSet, instruction_sets, load_library


class Weights(IntEnum):
    """How scores become weights; the values are those of kernels/native/attention.h."""

    SOFTMAX = 0
    SILU = 1


class _Strides(ctypes.Structure):
    """`Strides` of kernels/native/attention.h."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("sample", "head", "row"))


class _Attention(ctypes.Structure):
    """`Attention` of kernels/native/attention.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "key", "value", "bias", "mask")),
        *((name, ctypes.c_void_p) for name in ("out", "space")),
        *((f"{name}_strides", _Strides) for name in ("query", "key", "value", "bias", "mask")),
        *((name, ctypes.c_int64) for name in ("samples", "heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("width", "value_width")),
        ("scale", ctypes.c_float),
        ("divisor", ctypes.c_float),
        ("weights", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    )


def _load() -> ctypes.CDLL | None:
    library = load_library("kernels")
    if library is not None:
        call, space = library.sharded_infer_attention, library.sharded_infer_attention_space
        call.restype, space.restype = None, ctypes.c_int64
        call.argtypes = (ctypes.c_int32, ctypes.POINTER(_Attention))
        space.argtypes = (ctypes.POINTER(_Attention),)
    return library


_LIBRARY = _load()


def attention_instruction_sets() -> tuple[InstructionSet, ...]:
    """Instruction sets that can run the pass here, the fastest last; empty if none was built."""
    return instruction_sets(_LIBRARY)


@dataclass(frozen=True, slots=True)
class Attention:
    """The pass, prepared for its options; any number of threads may run it.

    Attributes:
        scale: of the scores; None: `1 / sqrt(width)`.
        divisor: of the results.
        causal: whether a query ignores the keys behind its own position.
        instruction_set: None takes the fastest.

    Raises:
        InputError: the machine lacks the instruction set.
    """

    weights: Weights = Weights.SOFTMAX
    scale: float | None = None
    divisor: float = 1.0
    causal: bool = False
    instruction_set: InstructionSet | None = None

    def __post_init__(self) -> None:
        available = attention_instruction_sets()
        if self.instruction_set is not None and self.instruction_set not in available:
            names = ", ".join(s.name.lower() for s in available) or "none"
            wanted = self.instruction_set.name.lower()
            raise InputError(f"attention: no {wanted} here, only {names}")

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Runs the pass.

        Args:
            query: fp32 `[B, H, Q, d]`.
            key: fp32 `[B, H, L, d]`, L at least 1.
            value: fp32 `[B, H, L, n]`.
            bias: fp32, of a shape that broadcasts to `[B, H, Q, L]`.
            mask: bool, likewise.

        Returns:
            fp32 `[B, H, Q, n]`; `transpose(1, 2)` is without gaps.
        """
        chosen = self.instruction_set
        if chosen is None:
            chosen = max(attention_instruction_sets(), default=None)
        tensors = query, key, value
        if chosen is None or _LIBRARY is None or not _fit(*tensors, bias, mask):
            return self.by_torch(query, key, value, bias, mask)
        samples, heads, queries, width = query.shape
        keys, value_width = value.shape[2:]
        query, key, value = map(_side_by_side, tensors)
        scores = samples, heads, queries, keys
        bias, mask = (
            None if one is None else _side_by_side(one.expand(scores)) for one in (bias, mask)
        )
        out = torch.empty(samples, queries, heads, value_width)
        given = query, key, value, bias, mask
        call = _Attention(
            *map(tensor_address, given),
            out.data_ptr(),
            None,
            *(_Strides() if one is None else _Strides(*one.stride()[:3]) for one in given),
            *scores,
            width,
            value_width,
            width**-0.5 if self.scale is None else self.scale,
            self.divisor,
            self.weights,
            self.causal,
        )
        space = torch.empty(_LIBRARY.sharded_infer_attention_space(call))
        call.space = space.data_ptr()
        _LIBRARY.sharded_infer_attention(chosen, call)
        return out.transpose(1, 2)

    def by_torch(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """The reference: as a call, in torch's operators, of any floating-point dtype."""
        scale = query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = query @ key.transpose(-2, -1) * scale
        scores = scores if bias is None else scores + bias
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
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
    """Whether the compiled pass can read these; torch broadcasts or converts others."""
    if any(one.dtype is not torch.float32 or one.dim() != 4 for one in (query, key, value)):
        return False
    if query.shape[:2] != key.shape[:2] or key.shape[:3] != value.shape[:3] or not key.shape[2]:
        return False
    if query.shape[3] != key.shape[3]:
        return False
    scores = *query.shape[:3], key.shape[2]
    return (bias is None or (bias.dtype is torch.float32 and _broadcasts(bias, scores))) and (
        mask is None or (mask.dtype is torch.bool and _broadcasts(mask, scores))
    )


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    backwards = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.dim() <= len(shape) and all(own in (1, size) for own, size in backwards)


def _side_by_side(tensor: Tensor) -> Tensor:
    """The tensor with its last axis without gaps."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
