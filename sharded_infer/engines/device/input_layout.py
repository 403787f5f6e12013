"""Memory layout of a batch's inputs for one device: one block, moved by one copy.

    offsets   int32 [F * B + 1]       start of each bag of the device's features
    only on the tower's device:
        owners    int32 [B]           each sample's bag in shared features
        shared    bool [width]        whether a column belongs to a shared feature
        factors   fp32 [K, B]         multipliers that turn sums of split features into means
        dense     fp32 [B, width]     each dense input
    values    int32 or int64 [N]      ids; only those in use are copied
    weights   fp32 [N]                weights of the ids, if the batch has any; likewise

Each array begins at a multiple of 16 bytes. B is the bucket that the batch is padded to. N is the
capacity in ids.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.gpu.device_tables import rounded_up

_ALIGNMENT = 16
_IDS_TOGETHER = 4  # keeps the weights aligned


@dataclass(frozen=True, slots=True)
class InputShape:
    """Sizes that are the same for every batch.

    Attributes:
        id_dtype: int32 or int64.
        width: columns of the tower's sparse input.
        split_means: number of features whose means are computed on the tower's device.
    """

    features: int
    id_dtype: torch.dtype
    has_tower: bool
    width: int
    split_means: int
    dense_widths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InputViews:
    """A batch's arrays, as views of one block; see the module for each array.

    Arrays for the tower are empty on other devices. `values_begin` and `weights_begin` are offsets
    in the block, in bytes.
    """

    offsets: Tensor
    owners: Tensor
    shared: Tensor
    factors: Tensor
    dense: tuple[Tensor, ...]
    values: Tensor
    values_begin: int
    weights: Tensor
    weights_begin: int


def input_bytes(shape: InputShape, bucket: int, ids: int) -> int:
    """Bytes of a block for batches of up to `ids` ids."""
    return _begins(shape, bucket)[-1] + rounded_up(ids, _IDS_TOGETHER) * _bytes_of_id(shape)


def input_views(shape: InputShape, memory: Tensor, bucket: int) -> InputViews:
    """Splits a uint8 `[bytes]` block, on the host or the device, into a batch's arrays.

    The space behind the other arrays is divided between ids and weights.
    """
    begins = _begins(shape, bucket)
    offsets, owners, shared, factors, *dense = (
        memory[begin : begin + math.prod(size) * dtype.itemsize].view(dtype).view(size)
        for begin, (dtype, size) in zip(begins, _arrays(shape, bucket), strict=False)
    )
    left = (len(memory) - begins[-1]) // _bytes_of_id(shape)
    ids = left // _IDS_TOGETHER * _IDS_TOGETHER
    weights_begin = begins[-1] + ids * shape.id_dtype.itemsize
    return InputViews(
        offsets=offsets,
        owners=owners,
        shared=shared,
        factors=factors,
        dense=tuple(dense),
        values=memory[begins[-1] : weights_begin].view(shape.id_dtype),
        values_begin=begins[-1],
        weights=memory[weights_begin : weights_begin + 4 * ids].view(torch.float32),
        weights_begin=weights_begin,
    )


def _bytes_of_id(shape: InputShape) -> int:
    return shape.id_dtype.itemsize + 4


def _arrays(shape: InputShape, bucket: int) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """The dtype and size of each array before the ids."""
    samples, width = (bucket, shape.width) if shape.has_tower else (0, 0)
    dense = shape.dense_widths if shape.has_tower else ()
    return [
        (torch.int32, (shape.features * bucket + 1,)),
        (torch.int32, (samples,)),
        (torch.bool, (width,)),
        (torch.float32, (shape.split_means, samples)),
        *((torch.float32, (samples, width)) for width in dense),
    ]


def _begins(shape: InputShape, bucket: int) -> list[int]:
    """Start of each array, in bytes; the last is that of the ids."""
    begins = [0]
    for dtype, size in _arrays(shape, bucket):
        end = begins[-1] + math.prod(size) * dtype.itemsize
        begins.append(rounded_up(end, _ALIGNMENT))
    return begins
