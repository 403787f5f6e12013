"""Rows of sequences as the tower's inputs, and beside pooled embeddings in one matrix."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from sharded_infer.inputs.sequences.layout import LaidOut
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.tensors import tensor_of


class SequenceRows(NamedTuple):
    """One sequence of B samples, or of the R requests that share it, padded to L.

    Attributes:
        rows: fp32 `[B, L, width]`, its features side by side; zeros where padded.
        lengths: int64 `[B]`.
        companions: fp32 `[B, L, K]` of each of its dense inputs, then int64 `[B, L]` of each
            feature whose ids are inputs.
        shortest: the length of samples that pad a batch.
    """

    rows: Tensor
    lengths: Tensor
    companions: tuple[Tensor, ...]
    shortest: int = 0

    @classmethod
    def empty(cls, laid_out: LaidOut) -> "SequenceRows":
        """Unwritten rows of a layout."""
        positions, padded = laid_out.bags.batch_size, laid_out.padded_length
        return cls(
            torch.empty(positions // padded, padded, laid_out.width),
            tensor_of(laid_out.lengths),
            tuple([tensor_of(one) for one in laid_out.companions]),
            laid_out.shortest,
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tower's inputs, in the order of `ModelSpec.sequence_inputs`."""
        return (self.rows, self.lengths, *self.companions)

    def spread(self, samples: int, rows: int, repeats: Tensor | None) -> "SequenceRows":
        """B `samples` padded with zeros to `rows`.

        `repeats`, int64 `[R]`, are the samples that share each of R rows; None: all share one.
        """
        if len(self.lengths) == rows:
            return self
        every = [_spread(array, samples, rows, repeats) for array in self.inputs]
        if self.shortest:
            every[1][samples:] = self.shortest
        return SequenceRows(every[0], every[1], tuple(every[2:]), self.shortest)

    def lengthened(self, spec: SequenceSpec, length: int) -> "SequenceRows":
        """The same samples with more padding, up to `length` positions or `max_length`."""
        more = min(length, spec.max_length) - self.rows.shape[1]
        if more <= 0:
            return self
        pads = (more, 0) if spec.pad == "left" else (0, more)
        rows, *companions = (
            pad(array, (*(0, 0) * (array.dim() - 2), *pads))
            for array in (self.rows, *self.companions)
        )
        return self._replace(rows=rows, companions=tuple(companions))


def tower_inputs(
    sequences: Sequence[SequenceRows], samples: int, rows: int, repeats: Tensor | None
) -> list[Tensor]:
    """The tower's inputs of a batch's sequences; arguments as `SequenceRows.spread`."""
    spread = (one.spread(samples, rows, repeats) for one in sequences)
    return [array for one in spread for array in one.inputs]


def _spread(array: Tensor, samples: int, rows: int, repeats: Tensor | None) -> Tensor:
    if len(array) != samples:
        if repeats is None:
            array = array.expand(samples, *array.shape[1:])
        else:
            array = array.repeat_interleave(repeats, dim=0)
    if rows == samples:
        return array.contiguous()
    padded = array.new_zeros(rows, *array.shape[1:])
    padded[:samples] = array
    return padded


def side_by_side(pooled: Tensor, sequences: Sequence[SequenceRows]) -> Tensor:
    """Pooled embeddings fp32 `[B, width]` and the padded rows of sequences as one matrix."""
    return torch.cat([pooled, *(one.rows.flatten(1) for one in sequences)], dim=1)


def taken_apart(
    joined: Tensor, width: int, sequences: Sequence[SequenceRows]
) -> tuple[Tensor, list[SequenceRows]]:
    """The inverse of `side_by_side`, with new rows.

    `width` is that of the pooled embeddings; shapes, lengths and companions are those of
    `sequences`.
    """
    widths = [width, *(one.rows.shape[1] * one.rows.shape[2] for one in sequences)]
    pooled, *parts = torch.split(joined, widths, dim=1)
    return pooled, [
        one._replace(rows=part.reshape(one.rows.shape))
        for one, part in zip(sequences, parts, strict=True)
    ]
