"""Times of decoding requests: compiled, through protobuf, and by a plain loop.

Ragged requests have an INT64 input and its INT32 lengths for each feature; ranking requests have 26
features of 3 ids a sample and 13 dense numbers. HTTP's times include the request's header; compiled
code reads only usual bodies, within their calls.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from serving.bench.load.http_generator import binary_body
from serving.bench.turns import Turns, timed
from serving.bench.workloads.requests import request_message
from serving.commands.bench.report import TEXT, Report, bench_command, times
from serving.http_api.infer_request import read_document
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.wire_tensors import DTYPES
from sharded_infer.client import Bags
from sharded_infer.client.request_message import request_message as predict_message
from sharded_infer.progress import Progress
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

Arrays = dict[str, NDArray[np.generic]]

RANKING_FEATURES, RANKING_IDS, DENSE_WIDTH = 26, 3, 13
RANKING_BATCHES = (1, 16, 270)
_ROWS, _MOST_IDS = 100_000, 5
_ROUNDS, _ROUND_SECONDS = 31, 0.01


@bench_command
def decode_command(
    progress: Progress,
    inputs: Annotated[
        int, typer.Option(min=1, max=10_000, help="Ragged inputs of the first request.")
    ] = 100,
    batch: Annotated[
        int, typer.Option(min=1, max=65_536, help="Samples of the first request.")
    ] = 16,
) -> Report:
    """Measure decoding beside protobuf's parsing and a plain loop.

    Decodes to the checked batch on one thread; measures our own message format and HTTP bodies too.
    Takes five seconds. The file's top keys are those of the ragged request.
    """
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    spec = ModelSpec("ragged", _tables(inputs))
    cases = [(f"{inputs} ragged inputs", batch, spec, *_ragged(generator, spec, batch))]
    spec = ModelSpec("ranking", _tables(RANKING_FEATURES), DenseSpec({"dense": DENSE_WIDTH}))
    for size in RANKING_BATCHES:
        name = f"{RANKING_FEATURES} features of {RANKING_IDS} ids"
        cases.append((name, size, spec, *_ranking(generator, spec, size)))
    measured: list[dict[str, Any]] = []
    for name, size, model, message, predict in cases:
        sizes = {"message_bytes": len(message), "predict_bytes": len(predict)}
        microseconds = _microseconds(model, size, message, predict)
        measured.append({"request": name, "batch": size, **sizes, **microseconds})
        progress("decoding", len(measured), len(cases))
    figure = ".1f"
    kib = times(1 / 1024, figure)
    top = ("native", "portable", "protobuf", "plain_loop")
    return Report(
        [
            ("request", TEXT, "request"),
            ("samples", "d", "batch"),
            ("KiB", kib, "message_bytes"),
            ("native", figure, "native"),
            ("portable", figure, "portable"),
            ("protobuf", figure, "protobuf"),
            ("plain loop", figure, "plain_loop"),
            ("Predict KiB", kib, "predict_bytes"),
            ("Predict", figure, "predict"),
            ("HTTP", figure, "http"),
        ],
        measured,
        [
            "microseconds a request; protobuf: parsing alone; plain loop: parsing and an array a "
            "tensor, unchecked; Predict: the same inputs in our own form, compiled; HTTP: with "
            "binary tensors, rewritten in Python as unusual bodies are"
        ],
        {
            "inputs": inputs,
            "batch": batch,
            **{f"{name}_us": measured[0][name] for name in top},
            "measurements": measured,
        },
    )


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
    return request_message("bench", inputs), predict_message("bench", candidates=bags)


def _ranking(generator: np.random.Generator, spec: ModelSpec, batch: int) -> tuple[bytes, bytes]:
    inputs: Arrays = {"dense": generator.random((batch, DENSE_WIDTH), dtype=np.float32)}
    for feature in spec.features:
        inputs[feature.name] = generator.integers(0, _ROWS, (batch, RANKING_IDS))
    return request_message("bench", inputs), predict_message("bench", candidates=inputs)


def _loop(message: bytes) -> Arrays:
    request = service_pb2.ModelInferRequest.FromString(message)
    return {
        tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def _microseconds(spec: ModelSpec, batch: int, message: bytes, predict: bytes) -> dict[str, float]:
    """Medians of decoding a request, by variant."""
    portable, native = PortableReader(spec, max_batch=batch), NativeReader(spec, max_batch=batch)
    variants: dict[str, Callable[[], object]] = {
        "native": lambda: native.read_message(message),
        "portable": lambda: portable.read_message(message),
        "protobuf": lambda: service_pb2.ModelInferRequest.FromString(message),
        "plain_loop": lambda: _loop(message),
        "predict": lambda: native.read_message(predict, MessageFormat.PREDICT),
        "http": _http(spec, batch, message),
    }
    calls = {name: partial(timed, decode) for name, decode in variants.items()}
    found = Turns(_ROUNDS, _ROUND_SECONDS).medians(calls)
    return {name: parts["seconds"] * 1e6 for name, parts in found.items()}


def _http(spec: ModelSpec, batch: int, message: bytes) -> Callable[[], object]:
    model, text, contents = binary_body(message)
    body, json_bytes = text + contents, len(text)
    reader, shared = InputReader(spec, max_batch=batch), RequestTensors(None)

    def decode() -> object:
        request = read_document(model, "", body, json_bytes)
        request.header()
        return reader.read_message(request.message(reader, shared))

    return decode
