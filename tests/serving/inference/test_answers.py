"""Answers in every form, read back by the generated code of their messages, or by a JSON reader."""

import ctypes
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.http_api.infer_answer import infer_answer
from serving.inference.predict_calls import PredictCalls
from serving.inference.unusual_calls import Arrival, read_call
from serving.metrics.server_metrics import ServerMetrics
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_header import RequestHeader
from serving.routing.router import Route
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.scheduler import Scheduler
from serving.scheduler.version_queue import VersionQueue
from serving.shared_memory.regions import SharedMemory, Span
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.v1 import predictor_pb2
from tests.support.requests_by_chance import MAX_BATCH, SPEC, serialized

OUTPUTS = ("score", 'la"bels')
ID = 'größe-7"\n'
INFER, STREAM = PredictMethod.MODEL_INFER, PredictMethod.MODEL_STREAM_INFER
PREDICT, HTTP = PredictMethod.PREDICT, PredictMethod.HTTP_INFER
READER = InputReader(SPEC, max_batch=MAX_BATCH)
MESSAGE = serialized(
    {
        "context": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bid": np.ones((2, 1), np.float32),
        "item": np.array([1, 2]),
    }
)
# Of two calls of two samples each; the answers asked for are of the second.
SCORES = [
    np.array([9.0, 9.0, 0.5, -1.0], np.float32),
    np.arange(-4, 4, dtype=np.float32).reshape(4, 2),
]
FIRST, SECOND = [0.5, -1.0], [0.0, 1.0, 2.0, 3.0]
_RESPOND = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
)
_RESPOND_HTTP = ctypes.CFUNCTYPE(
    ctypes.c_bool, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64,
    ctypes.c_void_p, ctypes.c_int64,
)  # fmt: skip


class Server:
    """The answers of a server, by number of their call."""

    def __init__(self, calls: PredictCalls) -> None:
        self.answers: dict[int, Answer] = {}
        self._kept = _RESPOND(self._responded), _RESPOND_HTTP(self._responded_http)
        respond, respond_http = (ctypes.cast(one, ctypes.c_void_p).value or 0 for one in self._kept)
        calls.attach((respond, 0, 0, 0, 0), (INFER, PREDICT, STREAM), most_calls=2)
        calls.attach_http((respond_http, 0, 0), (HTTP,), lambda: None, lambda *_: None)

    def _responded(self, _: int, call: int, message: int, size: int, ends: int) -> None:
        self.answers[call] = Answer(ctypes.string_at(message, size))

    def _responded_http(
        self, _: int, call: int, lines: int, line_bytes: int, body: int, size: int
    ) -> bool:
        head = dict(re.findall(rb"(.*): (.*)\r\n", ctypes.string_at(lines, line_bytes)))
        json_bytes = int(head.get(b"Inference-Header-Content-Length", b"0"))
        self.answers[call] = Answer(ctypes.string_at(body, size), json_bytes)
        return False


def answer(
    method: PredictMethod,
    *,
    scores: list[Any] = SCORES,
    outputs: bytes = b"\1\1",
    defaults: Mapping[str, Any] | None = None,
    unknown: Mapping[str, Any] | None = None,
    memory: SharedMemory | None = None,
    label: str = "",
    places: Sequence[tuple[int, Span]] = (),
) -> Answer:
    """The second of two calls' answer."""
    scheduler = Scheduler()
    calls = PredictCalls(scheduler, memory)
    server = Server(calls)
    queue = VersionQueue(BatchingPolicy(BatchingMode.BATCHED, max_delay=0.0), {1: 1e-9})
    scheduler.add_queue(queue)
    tower = SimpleNamespace(outputs=OUTPUTS)
    spec = SimpleNamespace(tower=tower, mapped_tables=SPEC.mapped_tables)
    model = SimpleNamespace(name="small", version=3, spec=spec, work=BatchWork(SPEC))
    metrics = ServerMetrics().version("small", 3)
    version: Any = SimpleNamespace(reader=READER, queue=queue, model=model, metrics=metrics)
    calls.routes.add(version)
    route = Route(version, label)
    wanted = {OUTPUTS[output]: span for output, span in places}
    header = RequestHeader("small", "", ID, places=wanted, reports_unknown_ids=unknown is not None)
    request: Any = SimpleNamespace(is_binary=lambda name: outputs[OUTPUTS.index(name)] == 2)
    for number in (1, 2):
        call = read_call(request, header, route, Arrival(method, number), monotonic(), 0)
        call.message, call.message_bytes, call.is_rewritten = MESSAGE, len(MESSAGE), True
        with calls.routes.reading(version) as call.route:
            assert calls.take_read(call, monotonic()) == (True, None)
    batch, _, _ = calls.begin(monotonic())
    assert batch is not None and batch.count == 2
    work = SimpleNamespace(defaults=defaults or {}, unknown=unknown or {})
    ran: Any = SimpleNamespace(scores=scores, work=work, lookup_seconds=0.25, tower_seconds=4.0)
    with metrics.lock:
        calls.finish(batch, ran, 0.25, 0.0)
    calls.end(batch.address, monotonic(), by_clock=True)
    return server.answers[2]


def tables(answer: Any) -> tuple[list[str], dict[str, int]]:
    parameters = {
        name: one.string_param or one.int64_param for name, one in answer.parameters.items()
    }
    return split_parameters(parameters)


def split_parameters(parameters: dict[str, Any]) -> tuple[list[str], dict[str, int]]:
    names = parameters.pop("sharded_infer_default_tables", "")
    unknown = {name.removeprefix("unknown_ids."): count for name, count in parameters.items()}
    return names.split(",") if names else [], unknown


def read_infer(response: Any) -> tuple[Any, ...]:
    assert (response.model_name, response.model_version, response.id) == ("small", "3", ID)
    shapes = [(output.name, output.datatype, list(output.shape)) for output in response.outputs]
    assert shapes == [("score", "FP32", [2]), ('la"bels', "FP32", [2, 2])]
    scores = [np.frombuffer(raw, "<f4").tolist() for raw in response.raw_output_contents]
    return (scores, *tables(response))


def read_stream(found: Answer) -> tuple[Any, ...]:
    response = service_pb2.ModelStreamInferResponse.FromString(found.body)
    assert not response.error_message
    assert response.infer_response.parameters["triton_final_response"].bool_param
    del response.infer_response.parameters["triton_final_response"]
    return read_infer(response.infer_response)


def read_predict(found: Answer) -> tuple[Any, ...]:
    response = predictor_pb2.PredictResponse.FromString(found.body)
    assert (response.model, response.version, response.request_id) == ("small", 3, ID)
    assert [output.width for output in response.outputs] == [0, 2]
    assert (response.timing.lookup_seconds, response.timing.tower_seconds) == (0.5, 4.0)
    scores = [list(output.values) for output in response.outputs]
    return scores, list(response.default_tables), dict(response.unknown_ids)


def read_http(found: Answer) -> tuple[Any, ...]:
    document = json.loads(found.body)
    assert (document["model_name"], document["model_version"]) == ("small", "3")
    assert document["id"] == ID
    scores = [output["data"] for output in document["outputs"]]
    return (scores, *split_parameters(document.get("parameters", {})))


@pytest.mark.parametrize(
    ("method", "read"),
    [
        (INFER, lambda a: read_infer(service_pb2.ModelInferResponse.FromString(a.body))),
        (STREAM, read_stream),
        (PREDICT, read_predict),
        (HTTP, read_http),
    ],
)
def test_an_answer_has_its_calls_scores_default_tables_and_unknown_ids(
    method: PredictMethod, read: Callable[[Answer], Any]
) -> None:
    wanted = [FIRST, SECOND]
    assert read(answer(method)) == (wanted, [], {})
    taken = np.array([True, False, False, True])
    others = np.array([True, True, False, False])
    defaults = {"item": taken, "other": others, "user.long": taken}
    assert read(answer(method, defaults=defaults)) == (wanted, ["item", "user.long"], {})
    unknown = {"item": np.array([7, 0, 3, 1]), "user": np.array([5, 0, 0, 0])}
    assert read(answer(method, unknown=unknown)) == (wanted, [], {"item": 4})


@pytest.mark.parametrize("columns", [1, 30, 31, 32, 5_000, 1_000_000])
def test_messages_of_every_size_are_read_back(columns: int) -> None:
    scores = [SCORES[0], np.arange(4 * columns, dtype=np.float32).reshape(4, columns)]
    wanted = scores[1][2:].ravel().tolist()
    response = service_pb2.ModelStreamInferResponse.FromString(answer(STREAM, scores=scores).body)
    contents = response.infer_response.raw_output_contents
    assert np.frombuffer(contents[1], "<f4").tolist() == wanted
    predicted = predictor_pb2.PredictResponse.FromString(answer(PREDICT, scores=scores).body)
    assert list(predicted.outputs[1].values) == wanted


def test_a_label_that_was_chosen_is_in_the_answer() -> None:
    response = service_pb2.ModelInferResponse.FromString(answer(INFER, label="canary").body)
    assert response.parameters["label"].string_param == "canary"
    assert predictor_pb2.PredictResponse.FromString(answer(PREDICT, label="x").body).label == "x"
    assert json.loads(answer(HTTP, label="ä").body)["parameters"] == {"label": "ä"}


def test_scores_that_json_has_no_numbers_for_are_null() -> None:
    scores = [np.array([0, 0, math.nan, -math.inf], np.float32), SCORES[1] * np.float32(0.1)]
    document = json.loads(answer(HTTP, scores=scores).body)
    assert document["outputs"][0]["data"] == [None, None]
    # The same doubles as of fp32, to the bit.
    assert document["outputs"][1]["data"] == scores[1][2:].ravel().tolist()
    assert all(type(score) is float for score in document["outputs"][1]["data"])


def test_binary_outputs_follow_the_json_in_their_order() -> None:
    found = infer_answer(answer(HTTP, outputs=b"\1\2"))
    length = int(dict(found.headers)["Inference-Header-Content-Length"])
    first, second = json.loads(found.body[:length])["outputs"]
    assert "data" in first and "data" not in second and found.kind == "application/octet-stream"
    assert second["parameters"] == {"binary_data_size": 16}
    assert found.body[length:] == SCORES[1][2:].tobytes()
    assert infer_answer(answer(HTTP)).kind == "application/json"


@pytest.fixture
def shared() -> Iterator[tuple[SharedMemory, Path]]:
    """Shared memory with one region, and its object."""
    path = Path("/dev/shm") / f"sharded-infer-test-{uuid.uuid4().hex}"  # noqa: S108
    path.write_bytes(bytes(2048))
    memory = SharedMemory(most_bytes=0)
    memory.register("a-region", path.name, offset=128, byte_size=1500)
    yield memory, path
    path.unlink()


def test_outputs_in_shared_memory_are_named_in_messages_and_not_in_json(
    shared: tuple[SharedMemory, Path],
) -> None:
    (memory, path), places = shared, [(0, Span("a-region", 64, 999))]
    response = service_pb2.ModelInferResponse.FromString(
        answer(INFER, places=places, memory=memory).body
    )
    assert np.frombuffer(path.read_bytes()[192:200], "<f4").tolist() == FIRST
    placed, other = response.outputs
    assert {
        name: one.string_param or one.int64_param for name, one in placed.parameters.items()
    } == {
        "shared_memory_region": "a-region",
        "shared_memory_offset": 64,
        # What was written, not what the client has room for.
        "shared_memory_byte_size": 8,
    }
    # Clients look for each output's contents at its position.
    assert response.raw_output_contents[0] == b"" and not other.parameters
    assert np.frombuffer(response.raw_output_contents[1], "<f4").tolist() == SECOND
    for outputs in (b"\1\1", b"\2\2"):
        found = answer(HTTP, outputs=outputs, places=places, memory=memory)
        first, second = json.loads(found.body[: found.json_bytes or None])["outputs"]
        # Where it was put, the client has said itself. Triton sends none here.
        assert set(first) == {"name", "datatype", "shape"}
        assert second.get("parameters") == ({"binary_data_size": 16} if found.json_bytes else None)
