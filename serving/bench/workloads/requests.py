"""Requests: random ids, uniform or with Zipf frequencies as in real traffic, and messages."""

from collections.abc import Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

ZIPF = 1.05
# A prime: the most used rows are scattered over a table.
_SCATTER = 2_654_435_761
_DATATYPES = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


class IdDistribution(StrEnum):
    """Distribution of a table's ids."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


def draw_ids(
    generator: np.random.Generator, distribution: IdDistribution, rows: int, count: int
) -> NDArray[np.int64]:
    """Draw ids of one table, int64 `[count]` in `[0, rows)`; Zipf's exponent is `ZIPF`."""
    if distribution is IdDistribution.UNIFORM:
        return generator.integers(0, rows, count)
    return scattered(zipf_ranks(generator, ZIPF, rows, count), rows)


def zipf_ranks(
    generator: np.random.Generator, exponent: float, rows: int, count: int
) -> NDArray[np.int64]:
    """Draw ranks by Zipf's law, int64 `[count]`; the most used row has rank 1."""
    # The inverse of the cumulative frequencies, with integrals for sums.
    draws, power = generator.random(count), 1 - exponent
    if abs(power) < 1e-9:
        numbers = np.exp(draws * np.log(rows))
    else:
        numbers = (draws * (rows**power - 1) + 1) ** (1 / power)
    ranks: NDArray[np.int64] = numbers.astype(np.int64)
    return ranks


def scattered(ranks: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Ids of ranks, different for different ranks below the number of rows."""
    ids: NDArray[np.int64] = ranks * _SCATTER % rows
    return ids


def request_message(model: str, inputs: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Serialize a ModelInferRequest with raw contents, in order of inputs."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def response_message(model: str, version: int, scores: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Serialize a ModelInferResponse; fp32 `[B]` or `[B, K]` by output."""
    response = service_pb2.ModelInferResponse(model_name=model, model_version=str(version))
    for name, values in scores.items():
        response.outputs.add(name=name, datatype="FP32", shape=values.shape)
        response.raw_output_contents.append(values.tobytes())
    return bytes(response.SerializeToString())
