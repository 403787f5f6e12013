"""Rows are padded for wide accesses where that takes little, to words otherwise."""

import numpy as np

from kernels.gpu.row_stride import device_stride, device_strides


def test_strides_are_words_or_wide_and_never_much_more_than_a_row() -> None:
    row_bytes = np.arange(1, 5000)
    strides = device_strides(row_bytes)
    assert strides.dtype == row_bytes.dtype and (strides >= row_bytes).all()
    assert (strides % 4 == 0).all() and (strides - row_bytes < 16).all()
    padded = strides - row_bytes >= 4
    assert (strides[padded] % 16 == 0).all() and (strides[padded] <= 1.1 * row_bytes[padded]).all()
    # A wider row never takes less.
    assert (np.diff(strides) >= 0).all()
    assert strides.tolist() == [device_stride(int(one)) for one in row_bytes]
    assert (device_strides(row_bytes.astype(np.float64)) == strides).all()
