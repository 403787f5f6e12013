"""Row stride of a table in a device's memory.

Rows at multiples of 16 bytes can be read in 16-byte accesses. They are padded to that if it takes
at most a tenth more memory (int8 at dim 128: 144 bytes for 132), and to words otherwise
(docs/gpu-engine.md).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDE_BYTES, WORD_BYTES = 16, 4


def device_strides(row_bytes: NDArray[Any]) -> NDArray[Any]:
    """Bytes from one row to the next, from each table's stored bytes, integers or floats."""
    wide = np.ceil(row_bytes / WIDE_BYTES) * WIDE_BYTES
    words = np.ceil(row_bytes / WORD_BYTES) * WORD_BYTES
    return np.where(10 * wide <= 11 * row_bytes, wide, words).astype(row_bytes.dtype)


def device_stride(row_bytes: int) -> int:
    """Bytes from one row of a table to the next."""
    return int(device_strides(np.array(row_bytes)))
