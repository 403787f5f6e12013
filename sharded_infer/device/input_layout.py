"""What a batch sends to one device, as one piece of memory that one copy moves.

    offsets   int32 [F * B + 1]       where each bag of the device's features begins
    tower's device only:
        owners    int32 [B]           which bag of a shared feature is each sample's
        shared    bool [width]        columns of features that samples share
        factors   fp32 [K, B]         what the sums of split means are multiplied by
        dense     fp32 [B, width]     of each dense input
    values    int32 or int64 [N]      ids: only as many are copied as there are
    weights   fp32 [N]                of ids, where a batch has any; likewise

Each begins at a multiple of 16 bytes. B is the bucket that the batch is padded to, N what there is
room for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.device_tables import rounded_up

_ALIGNMENT = 16
_IDS_TOGETHER = 4  # so that weights begin where they may


@dataclass(frozen=True, slots=True)
class InputShape:
    """What does not differ from batch to batch.

    Attributes:
        features: features whose ids the device needs.
        id_dtype: of ids, int32 or int64.
        has_tower: whether the tower is on the device.
        width: of the tower's sparse input.
        split_means: features whose means are divided on the tower's device.
        dense_widths: of each dense input.
    """

    features: int
    id_dtype: torch.dtype
    has_tower: bool
    width: int
    split_means: int
    dense_widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputViews:
    """A batch's arrays in one memory; None where the device has no tower.

    Attributes:
        offsets: int32 `[F * B + 1]`.
        owners: int32 `[B]`.
        shared: bool `[width]`.
        factors: fp32 `[K, B]`.
        dense: fp32 `[B, width]` each.
        values: `[N]`.
        values_begin: bytes before them.
        weights: fp32 `[N]`.
        weights_begin: bytes before them.
    """

    offsets: Tensor
    owners: Tensor | None
    shared: Tensor | None
    factors: Tensor | None
    dense: tuple[Tensor, ...]
    values: Tensor
    values_begin: int
    weights: Tensor
    weights_begin: int


def input_bytes(shape: InputShape, bucket: int, ids: int) -> int:
    """Bytes of a batch's arrays.

    Args:
        shape: of the device.
        bucket: samples.
        ids: that may come.
    """
    return _begins(shape, bucket)[-1] + rounded_up(ids, _IDS_TOGETHER) * _bytes_of_id(shape)


def input_views(shape: InputShape, memory: Tensor, bucket: int) -> InputViews:
    """The arrays of a batch in a memory.

    Args:
        shape: of the device.
        memory: uint8 `[bytes]`, on the host or the device; what is left of it is for ids and
            their weights.
        bucket: samples.
    """
    begins = _begins(shape, bucket)
    parts = iter(begins[:-1])

    def view(dtype: torch.dtype, *size: int) -> Tensor:
        begin, count = next(parts), _count(size) * dtype.itemsize
        return memory[begin : begin + count].view(dtype).view(size)

    offsets = view(torch.int32, shape.features * bucket + 1)
    owners = shared = factors = None
    dense: tuple[Tensor, ...] = ()
    if shape.has_tower:
        owners = view(torch.int32, bucket)
        shared = view(torch.bool, shape.width)
        factors = view(torch.float32, shape.split_means, bucket)
        dense = tuple(view(torch.float32, bucket, width) for width in shape.dense_widths)
    left = (len(memory) - begins[-1]) // _bytes_of_id(shape)
    ids = left // _IDS_TOGETHER * _IDS_TOGETHER
    weights_begin = begins[-1] + ids * shape.id_dtype.itemsize
    return InputViews(
        offsets=offsets,
        owners=owners,
        shared=shared,
        factors=factors,
        dense=dense,
        values=memory[begins[-1] : weights_begin].view(shape.id_dtype),
        values_begin=begins[-1],
        weights=memory[weights_begin : weights_begin + 4 * ids].view(torch.float32),
        weights_begin=weights_begin,
    )


def _bytes_of_id(shape: InputShape) -> int:
    """Of an id and its weight."""
    return shape.id_dtype.itemsize + 4


def _begins(shape: InputShape, bucket: int) -> list[int]:
    """Where each array begins, and, last, where the ids do."""
    sizes = [4 * (shape.features * bucket + 1)]
    if shape.has_tower:
        sizes += [4 * bucket, shape.width, 4 * shape.split_means * bucket]
        sizes += [4 * bucket * width for width in shape.dense_widths]
    begins = [0]
    for size in sizes:
        begins.append(rounded_up(begins[-1] + size, _ALIGNMENT))
    return begins


def _count(size: Sequence[int]) -> int:
    count = 1
    for length in size:
        count *= length
    return count
