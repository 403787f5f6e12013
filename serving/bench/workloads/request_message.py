"""Serialized requests of the protocol."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

_DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


def request_message(
    model: str, inputs: Mapping[str, NDArray[np.generic]], *, timeout_us: int = 0
) -> bytes:
    """Serialize a ModelInferRequest with raw contents, in order of inputs; timeout 0 is none."""
    request = service_pb2.ModelInferRequest(model_name=model)
    if timeout_us:
        request.parameters["timeout"].int64_param = timeout_us
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())
