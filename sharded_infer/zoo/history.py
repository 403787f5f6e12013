"""Histories of sequence towers: sizes, padding and times of steps.

A history is right-padded, `[B, L, W]`, with L the longest of the batch and at least 1. Its padding
never affects a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sharded_infer.errors import SpecError

# The base's logarithm of Zhai et al.'s released code: buckets grow by 35 %.
_BUCKET_LOGARITHM = 0.301


@dataclass(frozen=True, slots=True)
class SequenceSizes:
    """Sizes of a sequence of steps.

    Attributes:
        dims: embedding width of each member, in order; a step has their rows side by side.
        max_length: the most steps of a sample.
        dense: width of each dense companion, by name.
    """

    dims: tuple[int, ...]
    max_length: int
    dense: Mapping[str, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Width W of a step."""
        return sum(self.dims)


def candidate_dim(architecture: str, feature_dims: Sequence[int], history: SequenceSizes) -> int:
    """Width D of the candidate: the first pooled feature, and the history's first member.

    Raises:
        SpecError: one is missing, or their widths differ, so that they cannot be rows of one table.
    """
    if not feature_dims or not history.dims:
        raise SpecError(
            f"a {architecture} needs a pooled feature, the candidate, and a history of the "
            f"candidate's table, got {len(feature_dims)} pooled features and "
            f"{len(history.dims)} in the history"
        )
    if feature_dims[0] != history.dims[0]:
        raise SpecError(
            f"a {architecture}'s first pooled feature, the candidate, has dim {feature_dims[0]}, "
            f"the history's first feature {history.dims[0]}: they must be of one table"
        )
    return feature_dims[0]


def check_counts(architecture: str, counts: Mapping[str, int]) -> None:
    """Raises SpecError for sizes below 1, by the option's name."""
    for option, count in counts.items():
        if count < 1:
            raise SpecError(f"a {architecture}'s {option} must be at least 1, got {count}")


def check_heads(architecture: str, dim: int, heads: int) -> None:
    """Raises SpecError for heads that do not share the model's width equally."""
    if heads < 1 or dim % heads:
        raise SpecError(
            f"a {architecture}'s heads must divide the candidate's dim {dim}, got {heads}"
        )


def is_padding(steps: Tensor, lengths: Tensor) -> Tensor:
    """Padding of `steps` `[B, L, W]` with int64 `[B]` lengths: bool `[B, L]`."""
    positions = torch.arange(steps.shape[1], device=steps.device)
    return positions >= lengths.unsqueeze(1)


def without_padding(steps: Tensor, lengths: Tensor) -> Tensor:
    """`steps` `[B, L, W]` with zeros for its padding, whatever its content."""
    return steps.masked_fill(is_padding(steps, lengths).unsqueeze(2), 0.0)


def last_steps(steps: Tensor, lengths: Tensor) -> Tensor:
    """Last step of each sample of `[B, L, W]`, `[B, W]`; its first one, if it has none."""
    last = (lengths - 1).clamp(min=0).reshape(-1, 1, 1).expand(-1, 1, steps.shape[2])
    return steps.gather(1, last).squeeze(1)


def steps_to_last(steps: Tensor, lengths: Tensor, most: int) -> Tensor:
    """Distance of each of `[B, L, W]` steps to its sample's last: int64 `[B, L]`.

    From 0, also for padding, to `most`.
    """
    positions = torch.arange(steps.shape[1], device=steps.device)
    return (lengths.unsqueeze(1) - 1 - positions).clamp(0, most)


def time_buckets(seconds: Tensor, buckets: int) -> Tensor:
    """Bucket of each span of time, int64: `floor(log(max(1, seconds)) / 0.301)`.

    The formula of Zhai et al.'s released code (arXiv:2402.17152). The last bucket has all longer
    spans: 64 buckets reach beyond five years.
    """
    logarithms = seconds.clamp(min=1.0).log() / _BUCKET_LOGARITHM
    # Bounded as integers, so that NaN also gets a valid bucket.
    return logarithms.long().clamp(0, buckets - 1)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """`[B, N, D]` as `[B, heads, N, D / heads]`."""
    split: Tensor = rows.unflatten(2, (heads, -1))  # type: ignore[no-untyped-call]
    return split.transpose(1, 2)
