"""Times the decoding of requests: compiled, through protobuf, and by a plain loop.

The same inputs are also sent as a PredictRequest, our own form, and over HTTP as JSON and binary
tensors; HTTP's times are with the request's header. Ragged requests have an INT64 input
and its INT32 lengths for each feature; ranking ones have 26 features of 3 ids a sample and 13 dense
numbers. Rounds of all variants alternate, forwards and backwards; times are medians, on one thread.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from serving.bench.load.http_generator import binary_body
from serving.http_api.json_codec import JsonCodec, read_request
from serving.protocol.infer_writer import InferWriter
from serving.protocol.message_format import MessageFormat
from serving.protocol.native_library import LIBRARIES
from serving.protocol.predict_writer import PredictWriter
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.version_io import VersionIO
from serving.protocol.wire_tensors import DTYPES
from sharded_infer.client import Bags
from sharded_infer.client.request_message import request_message as predict_message
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

Arrays = dict[str, NDArray[np.generic]]

RANKING_FEATURES, RANKING_IDS, DENSE_WIDTH = 26, 3, 13
RANKING_BATCHES = (1, 16, 270)
_ROWS, _MOST_IDS = 100_000, 5
_DATATYPES = {dtype.name: datatype for datatype, dtype in DTYPES.items()}
_ROUNDS, _ROUND_SECONDS = 31, 0.01


@dataclass(frozen=True, slots=True)
class DecodeMeasurement:
    """Times of one request, microseconds.

    Attributes:
        native: to the checked batch by compiled code; None if it was not built.
        portable: to the checked batch through protobuf.
        protobuf: protobuf's parsing alone.
        plain_loop: parsing, and a loop that makes each tensor an array, without checks or a batch.
        predict_bytes: size of the same inputs as a PredictRequest.
        predict: from that to the checked batch by compiled code; None if it was not built.
        http: from an HTTP body to the checked batch, by compiled code if it was built.
    """

    request: str
    batch: int
    message_bytes: int
    native: float | None
    portable: float
    protobuf: float
    plain_loop: float
    predict_bytes: int
    predict: float | None
    http: float


def measure_decoding(inputs: int, batch: int, progress: Progress) -> list[DecodeMeasurement]:
    """Measures the ragged request, then the ranking ones.

    Args:
        inputs: ragged features of the first request.
    """
    generator = np.random.default_rng(0)
    spec = ModelSpec("ragged", _tables(inputs))
    cases = [(f"{inputs} ragged inputs", batch, spec, *_ragged(generator, spec, batch))]
    spec = ModelSpec("ranking", _tables(RANKING_FEATURES), DenseSpec({"dense": DENSE_WIDTH}))
    for size in RANKING_BATCHES:
        name = f"{RANKING_FEATURES} features of {RANKING_IDS} ids"
        cases.append((name, size, spec, *_ranking(generator, spec, size)))
    measured = []
    for name, size, model, message, predict in cases:
        times = _times(model, size, message, predict)
        measured.append(
            DecodeMeasurement(
                request=name,
                batch=size,
                message_bytes=len(message),
                native=times.get("native"),
                portable=times["portable"],
                protobuf=times["protobuf"],
                plain_loop=times["plain_loop"],
                predict_bytes=len(predict),
                predict=times.get("predict"),
                http=times["http"],
            )
        )
        progress("decoding", len(measured), len(cases))
    return measured


def _tables(count: int) -> tuple[TableSpec, ...]:
    return tuple(TableSpec(f"feature_{i}", _ROWS, 16) for i in range(count))


def _ragged(generator: np.random.Generator, spec: ModelSpec, batch: int) -> tuple[bytes, bytes]:
    inputs: Arrays = {}
    bags = {}
    for feature in spec.features:
        lengths = generator.integers(0, _MOST_IDS + 1, batch).astype(np.int32)
        ids = generator.integers(0, _ROWS, int(lengths.sum()))
        inputs[feature.name] = ids
        inputs[f"{feature.name}.lengths"] = lengths
        bags[feature.name] = Bags(ids, lengths)
    return _serialized(inputs), predict_message("bench", candidates=bags)


def _ranking(generator: np.random.Generator, spec: ModelSpec, batch: int) -> tuple[bytes, bytes]:
    inputs: Arrays = {"dense": generator.random((batch, DENSE_WIDTH), dtype=np.float32)}
    for feature in spec.features:
        inputs[feature.name] = generator.integers(0, _ROWS, (batch, RANKING_IDS))
    return _serialized(inputs), predict_message("bench", candidates=inputs)


def _serialized(inputs: Arrays) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="bench")
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=_DATATYPES[array.dtype.name], shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def _loop(message: bytes) -> Arrays:
    request = service_pb2.ModelInferRequest.FromString(message)
    return {
        tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def _times(spec: ModelSpec, batch: int, message: bytes, predict: bytes) -> dict[str, float]:
    portable, parse = PortableReader(spec, max_batch=batch), service_pb2.ModelInferRequest
    variants: dict[str, Callable[[], object]] = {
        "portable": lambda: portable.read_message(message),
        "protobuf": lambda: parse.FromString(message),
        "plain_loop": lambda: _loop(message),
        "http": _http(spec, batch, message),
    }
    if LIBRARIES is not None:
        native = NativeReader(spec, max_batch=batch)
        variants["native"] = lambda: native.read_message(message)
        variants["predict"] = lambda: native.read_message(predict, MessageFormat.PREDICT)
    found: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(_ROUNDS):
        for name in names if turn % 2 else names[::-1]:
            found[name].append(_round(variants[name]))
    return {name: statistics.median(of_one) for name, of_one in found.items()}


def _http(spec: ModelSpec, batch: int, message: bytes) -> Callable[[], object]:
    model, text, contents = binary_body(message)
    body, json_bytes = text + contents, len(text)
    io = VersionIO(
        InputReader(spec, max_batch=batch),
        InferWriter(model, 1, ()),
        PredictWriter(model, 1, ()),
    )
    codec, shared = JsonCodec(), RequestTensors(None)

    def decode() -> object:
        request = read_request(model, "", body, json_bytes)
        codec.header(request)
        return codec.decode(request, io, shared)

    return decode


def _round(decode: Callable[[], object]) -> float:
    """The median of calls one after another, microseconds."""
    calls: list[float] = []
    spent = 0.0
    while spent < _ROUND_SECONDS:
        started = time.perf_counter()
        decode()
        seconds = time.perf_counter() - started
        spent += seconds
        calls.append(seconds)
    return statistics.median(calls) * 1e6
