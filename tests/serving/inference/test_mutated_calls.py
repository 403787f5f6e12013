"""Mutated predict calls of every form: compiled code takes none that Python reads otherwise.

What it takes is recorded too, and read anew as it was sent.
"""

import ctypes
import json
import math
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from kernels.native_library import address_of
from serving.abi.calls import Sender
from serving.abi.transport import Event, EventKind
from serving.bench.workloads.requests import request_message
from serving.http_api.infer_request import read_document
from serving.inference.call_batch import CallBatch
from serving.inference.predict_calls import PredictCalls
from serving.protocol.input_limits import InputLimits
from serving.protocol.predict_message import parse_predict
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import RequestHeader, header_of, predict_header_of
from serving.protocol.request_tensors import RequestTensors
from serving.recording.waiting_calls import RecordedCalls, WaitingCalls
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.scheduler.version_queue import VersionQueue
from serving.shared_memory.regions import SharedMemory
from serving.status import Status, StatusCode
from sharded_infer.errors import ShardedInferError
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.model_spec import ModelSpec
from tests.serving.protocol.mutations import bytes_changed, fields_changed, mutated, tokens_changed
from tests.serving.protocol.readers import test_raw_id_reading as raw_ids
from tests.serving.protocol.readers.test_string_reading import string_inputs
from tests.serving.protocol.test_predict_message import as_predict as plain_as_predict
from tests.support import requests_by_chance as plain
from tests.support import sequences_by_chance as sequences
from tests.support import string_requests as strings
from tests.support.requests_by_chance import DATATYPES, Arrays, check_same
from tests.support.string_requests import Sent

LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
# Of each model and form.
REQUESTS, EACH = (100_000, 500) if LONG else (400, 20)
pytestmark = [pytest.mark.slow] if LONG else []
DTYPES = {name: dtype for dtype, name in DATATYPES.items()}
METHODS = (PredictMethod.MODEL_INFER, PredictMethod.PREDICT)
REGION, REGION_BYTES, OBJECT_BYTES = "region", 1 << 16, (1 << 16) + 512
MEMORY = SharedMemory(most_bytes=REGION_BYTES)
OBJECT = Path("/dev/shm") / f"sharded-infer-test-{uuid.uuid4().hex}"  # noqa: S108
INFER, PREDICT = range(2)
# Of answers, whatever their arguments.
_IGNORE = ctypes.CFUNCTYPE(ctypes.c_bool)(lambda: False)


class Kind(NamedTuple):
    spec: ModelSpec
    max_batch: int
    maps: Mapping[str, IdMap]
    inputs: st.SearchStrategy[Any]


MODELS = {
    "plain": Kind(plain.SPEC, plain.MAX_BATCH, {}, plain.inputs_by_chance()),
    "raw ids": Kind(
        raw_ids.SPEC,
        plain.MAX_BATCH,
        raw_ids.MAPS,
        plain.inputs_by_chance(raw_ids.SPEC, raw_ids.RAW),
    ),
    "strings": Kind(strings.SPEC, strings.MAX_BATCH, strings.MAPS, string_inputs()),
    "sequences": Kind(
        sequences.SPEC, sequences.MAX_BATCH, sequences.id_maps(), sequences.sequences_by_chance()
    ),
}


class Model:
    """Calls of one model, taken one by one, and what Python reads of them."""

    def __init__(self, kind: Kind) -> None:
        self._scheduler = Scheduler(limits=QueueLimits())
        self._calls = PredictCalls(self._scheduler, MEMORY)
        readers = (
            InputReader(
                kind.spec,
                max_batch=kind.max_batch,
                backend=backend,
                limits=InputLimits(),
                id_maps=kind.maps,
            )
            for backend in ("native", "portable")
        )
        self._reader, self._portable = readers
        queue = VersionQueue(BatchingPolicy(BatchingMode.BATCHED, 10_000, 0.0), {1: 1e-9})
        self._scheduler.add_queue(queue)
        model = SimpleNamespace(name=kind.spec.name, version=1, spec=kind.spec)
        version: Any = SimpleNamespace(reader=self._reader, queue=queue, model=model)
        self._calls.routes.add(version)
        self._calls.routes.set_names({(kind.spec.name, ""): version})
        ignore = ctypes.cast(_IGNORE, ctypes.c_void_p).value or 0
        self._calls.attach((ignore, ignore, 0, 0, 0), METHODS, most_calls=2**20)
        self._waiting = WaitingCalls(self._calls, 1.0, 2**26)
        self._calls.attach_http(
            (ignore, ignore, 0), (PredictMethod.HTTP_INFER,), lambda: None, lambda *_: None
        )
        self._name, self._numbers = kind.spec.name, 0
        self._outputs = kind.spec.tower.outputs

    def take(self, sender: Sender, method: int, sent: bytes, head: bytes) -> CallBatch | None:
        """The taken call as a batch; None: it is left to Python, or its deadline has passed."""
        self._numbers += 1
        # Memory ends where they do, which small objects of Python's own allocator do not.
        data, headers = (np.frombuffer(text, np.uint8).copy() for text in (sent, head))
        event = Event(
            *(self._numbers, address_of(data), len(sent), address_of(headers)),
            *(len(head), math.inf, EventKind.CALL, method, 0, 0),
        )
        taken = self._calls.take(sender, ctypes.addressof(event), 1)
        assert taken.queued + len(taken.left) == 1
        batch, late, _ = self._calls.begin(monotonic())
        for dropped in late:
            self._calls.end(dropped.address, monotonic(), by_clock=True)
        assert taken.queued == (batch is not None) + len(late)
        return batch

    def check(self, sender: Sender, method: int, sent: bytes, json_bytes: int | None) -> bool:
        """True if compiled code takes a call, which Python then reads alike."""
        head = b"" if sender is Sender.GRPC else self._head(json_bytes)
        batch = self.take(sender, method, sent, head)
        if batch is None:
            return False
        try:
            [facts] = batch.calls()
            header, wanted = self._read(sender, method, sent, json_bytes)
            assert (self._name, facts.request_id) == (header.model_name, header.request_id)
            places = {self._outputs[position]: span for position, span in facts.places}
            assert places == dict(header.places)
            for span in places.values():
                MEMORY.check(span, "output")
            check_same(batch.input(), wanted)
            self._calls.fail(batch, Status(StatusCode.INTERNAL, "none scored it"))
        finally:
            self._calls.end(batch.address, monotonic(), by_clock=True)
            recorded = list(self._waiting.take())
        for calls in recorded:
            assert isinstance(calls, RecordedCalls)
            self._check_recorded(calls, header, wanted)
        # Calls with inputs in shared memory are not recorded.
        assert len(recorded) == (0 if b"shared_memory_region" in sent else 1)
        return True

    def _check_recorded(
        self, one: RecordedCalls, header: RequestHeader, wanted: ModelInput
    ) -> None:
        assert one.ids.numbers.tobytes().decode() == header.request_id
        assert (one.samples[0], one.ids_outside[0]) == (wanted.batch_size, wanted.ids_outside)
        assert one.codes == ["INTERNAL"]
        inputs: dict[str, Any] = {}
        for name, values in one.values.items():
            lengths = one.lengths[name].numbers.astype(np.int32)
            inputs |= {name: values.numbers, f"{name}.lengths": lengths}
            if name in one.weights:
                inputs[f"{name}.weights"] = one.weights[name].numbers
        inputs |= {name: rows.numbers for name, rows in one.dense.items()}
        inputs |= {name: inputs[name].reshape(-1, width) for name, width in one.widths.items()}
        message = request_message(self._name, inputs)
        found = self._portable.read_message(message, RequestTensors(MEMORY), METHODS[INFER].format)
        for mine, theirs in zip(found.groups, wanted.groups, strict=True):
            assert mine.features == theirs.features
            np.testing.assert_array_equal(mine.values, theirs.values)
            np.testing.assert_array_equal(mine.lengths, theirs.lengths)
            np.testing.assert_array_equal(_weights(mine), _weights(theirs))
        for some, others in zip(found.dense, wanted.dense, strict=True):
            assert some.tobytes() == others.tobytes()

    def check_rewritten(self, method: int, sent: bytes) -> bool:
        """True if Python reads a message, which compiled code reads alike once it is rewritten."""
        form, shared = METHODS[method].format, RequestTensors(MEMORY)
        try:
            usual = self._portable.rewritten(sent, shared, form)
        except ShardedInferError:
            return False
        found = self._reader.native.read_message(usual)
        assert found is not None
        check_same(found, self._portable.read_message(sent, RequestTensors(MEMORY), form))
        return True

    def _read(
        self, sender: Sender, method: int, sent: bytes, json_bytes: int | None
    ) -> tuple[RequestHeader, ModelInput]:
        memory = RequestTensors(MEMORY)
        if sender is Sender.HTTP:
            document = read_document(self._name, "", sent, json_bytes)
            message = document.message(self._portable, memory)
            return document.header(), self._portable.read_message(message)
        found = self._portable.read_message(sent, memory, METHODS[method].format)
        if method == PREDICT:
            return predict_header_of(parse_predict(sent)), found
        return header_of(parse_request(sent)), found

    def _head(self, json_bytes: int | None) -> bytes:
        pairs = {":path": f"/v2/models/{self._name}/infer"}
        if json_bytes is not None:
            pairs["inference-header-content-length"] = str(json_bytes)
        return b"".join(
            len(name).to_bytes(4, "little") + len(value).to_bytes(4, "little")
            + name.encode() + value.encode()
            for name, value in pairs.items()
        )  # fmt: skip


def _weights(group: JaggedBatch) -> Any:
    return np.ones(len(group.values), np.float32) if group.weights is None else group.weights


model_of = cache(lambda name: Model(MODELS[name]))


def elements(sent: Sent) -> list[Any]:
    """Numbers or strings, in one list."""
    if sent.datatype != "BYTES":
        numbers: list[Any] = np.frombuffer(sent.data, DTYPES[sent.datatype]).tolist()
        return numbers
    found, at = [], 0
    while at < len(sent.data):
        end = at + 4 + int.from_bytes(sent.data[at : at + 4], "little")
        found.append(sent.data[at + 4 : end])
        at = end
    return found


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    """Registers the region, whose object goes afterwards."""
    with OBJECT.open("wb") as file:
        file.truncate(OBJECT_BYTES)
    MEMORY.register(REGION, OBJECT.name, offset=256, byte_size=REGION_BYTES)
    yield
    MEMORY.unregister(REGION)
    OBJECT.unlink()


def spans_of(inputs: Mapping[str, Sent]) -> list[dict[str, Any]]:
    """Writes inputs into the region; the parameters of each."""
    spans, at = [], 0
    with OBJECT.open("r+b") as file:
        for sent in inputs.values():
            file.seek(256 + at)
            file.write(sent.data)
            spans.append(span_of(len(sent.data), at))
            at += len(sent.data)
    return spans


def span_of(size: int, offset: int) -> dict[str, Any]:
    parameters = {"shared_memory_region": REGION, "shared_memory_byte_size": size}
    return {**parameters, "shared_memory_offset": offset} if offset else parameters


def set_parameters(parameters: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(parameters[name], kind, value)


def infer_message(name: str, inputs: Mapping[str, Sent], form: str) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=name, id="a")
    request.parameters["priority"].int64_param = 2
    request.parameters["routing_key"].string_param = "key"
    score = request.outputs.add(name="score")
    spans: list[dict[str, Any]] = [{}] * len(inputs)
    if form == SHARED:
        spans = spans_of(inputs)
        set_parameters(score.parameters, span_of(64, 1000))
    fields = {"BYTES": "bytes_contents", "INT64": "int64_contents", "INT32": "int_contents"}
    for (key, sent), span in zip(inputs.items(), spans, strict=True):
        tensor = request.inputs.add(name=key, datatype=sent.datatype, shape=sent.shape)
        set_parameters(tensor.parameters, span)
        if form == TYPED:
            field = getattr(tensor.contents, fields.get(sent.datatype, "fp32_contents"))
            field.extend(elements(sent))
        elif form != SHARED:
            request.raw_input_contents.append(sent.data)
    return bytes(request.SerializeToString())


def body_of(inputs: Mapping[str, Sent], form: str) -> tuple[bytes, bytes]:
    """JSON, and the tensors in binary behind it."""
    entries = []
    spans = spans_of(inputs) if form == SHARED_BODY else [{}] * len(inputs)
    for (name, sent), span in zip(inputs.items(), spans, strict=True):
        entry: dict[str, Any] = {"name": name, "shape": sent.shape, "datatype": sent.datatype}
        if form == "binary":
            entry["parameters"] = {"binary_data_size": len(sent.data)}
        elif form == SHARED_BODY:
            entry["parameters"] = span
        else:
            data = [e.decode("latin-1") if isinstance(e, bytes) else e for e in elements(sent)]
            if form == "rows" and len(sent.shape) == 2:
                width = sent.shape[1]
                data = [data[row * width : (row + 1) * width] for row in range(sent.shape[0])]
            # In any order.
            entry = {"data": data, **entry} if form == "flat" else {**entry, "data": data}
        entries.append(entry)
    document = {
        "id": "a",
        "parameters": {"binary_data_output": True, "priority": 2, "routing_key": "key"},
        "inputs": entries,
        "outputs": [
            {
                "name": "score",
                "parameters": span_of(64, 0) if form == SHARED_BODY else {"binary_data": False},
            }
        ],
    }
    binary = b"".join(sent.data for sent in inputs.values()) if form == "binary" else b""
    return json.dumps(document, ensure_ascii=False).encode(), binary


def sent_of(inputs: Arrays | Mapping[str, Sent]) -> dict[str, Sent]:
    return {
        name: one
        if isinstance(one, Sent)
        else Sent(DATATYPES[one.dtype.name], list(one.shape), one.tobytes())
        for name, one in inputs.items()
    }


PREDICTS: dict[str, Callable[[Any], bytes | None]] = {
    "plain": plain_as_predict,
    "strings": strings.as_predict,
    "sequences": sequences.as_predict,
}


TYPED, SHARED, SHARED_BODY = "typed contents", "shared memory", "JSON and shared memory"
BODIES = ("flat", "rows", "binary", SHARED_BODY)
CASES = [(name, form) for name in MODELS for form in ("raw contents", TYPED, SHARED, *BODIES)]
CASES += [(name, "Predict") for name in PREDICTS]


Copy = tuple[Sender, int, bytes, int | None]


def copies(name: str, form: str, inputs: Any, chance: Random) -> Iterator[Copy]:
    """A request, and mutated copies of it; none of inputs that a form has no request for."""
    if form in BODIES:
        text, binary = body_of(sent_of(inputs), form)
        yield Sender.HTTP, 0, text + binary, len(text) if form == "binary" else None
        for _ in range(EACH):
            which = chance.randrange(3) if form == "binary" else 0
            head = text if which == 1 else mutated(text, chance, tokens_changed)
            tail = binary if which == 0 else mutated(binary, chance, bytes_changed)
            wrong = chance.choice((-9, -1, 1, 9)) if chance.random() < 0.1 else 0
            yield Sender.HTTP, 0, head + tail, len(head) + wrong if form == "binary" else None
        return
    method = PREDICT if form == "Predict" else INFER
    if form == "Predict":
        message = PREDICTS[name](inputs)
    else:
        message = infer_message(MODELS[name].spec.name, sent_of(inputs), form)
    if message is not None:
        yield Sender.GRPC, method, message, None
        for _ in range(EACH):
            yield Sender.GRPC, method, mutated(message, chance, fields_changed), None


@pytest.mark.timeout(7200 if LONG else 120)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_a_mutated_call_is_taken_only_if_python_reads_it_alike(name: str, form: str) -> None:
    model, taken = model_of(name), []

    @settings(max_examples=REQUESTS // EACH)
    @given(MODELS[name].inputs, st.integers(0, 2**32))
    def check(inputs: Any, seed: int) -> None:
        made = copies(name, form, inputs, Random(seed))
        taken.extend(model.check(*copy) for copy in made)

    check()
    # What the long form is run by hand for.
    print(f"{name}, {form}: {sum(taken)} of {len(taken)} taken")  # noqa: T201
    assert any(taken)


@pytest.mark.timeout(7200 if LONG else 120)
@pytest.mark.parametrize(("name", "form"), [case for case in CASES if case[1] not in BODIES])
def test_a_mutated_message_that_python_reads_is_usual_once_it_is_rewritten(
    name: str, form: str
) -> None:
    model, read = model_of(name), []

    @settings(max_examples=REQUESTS // EACH)
    @given(MODELS[name].inputs, st.integers(0, 2**32))
    def check(inputs: Any, seed: int) -> None:
        made = copies(name, form, inputs, Random(seed))
        read.extend(model.check_rewritten(method, sent) for _, method, sent, _ in made)

    check()
    assert any(read)
