"""Converts arrays to inputs of Triton's client."""

from collections.abc import Mapping

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

_DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}


def triton_inputs(arrays: Mapping[str, NDArray[np.generic]]) -> list[triton.InferInput]:
    """One raw input for each array.

    Args:
        arrays: fp32, int64 or int32, by input name.
    """
    inputs = []
    for name, array in arrays.items():
        tensor = triton.InferInput(name, list(array.shape), _DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    return inputs
