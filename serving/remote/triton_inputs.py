"""Converts arrays to inputs of Triton's client."""

from collections.abc import Mapping

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import np_to_triton_dtype


def triton_inputs(arrays: Mapping[str, NDArray[np.generic]]) -> list[triton.InferInput]:
    """One raw input for each array of fp32, int64, int32 or bytes (S), by input name."""
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    return inputs
