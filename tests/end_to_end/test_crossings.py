"""Calls of compiled code for a batch, counted in a real server by form of predict call."""

import json
import queue
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
import tritonclient.grpc
import tritonclient.http
import tritonclient.utils.shared_memory as shm
from torch import nn
from tritonclient.grpc import service_pb2

from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from serving.protocol.wire_strings import packed_strings
from sharded_infer.client.request_message import request_message
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.precision import Precision
from tests.support.fronts import SECONDS, hosts_file, running_hosts
from tests.support.raw_ids import WORDS, publish_words
from tests.support.servers import (
    DATATYPES,
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    json_inputs,
    running_server,
)
from tests.support.shard_host_processes import publish_for_hosts
from tests.support.waiting import until

# Calls, one after another: each is a batch.
CALLS = 100
MOST = 6
# The tower's own layers.
OF_THE_TOWER = {"sharded_infer_product", "sharded_infer_passes"}
SEQUENCES, HISTORY, ITEMS = "sasrec", 20, 50
# Functions of ctypes count themselves; the counts since the last SIGUSR2 go to a file.
PROGRAM = """
import collections, ctypes, json, os, signal
counts, make = collections.Counter(), ctypes.CDLL.__init__

def make_counting(library, *arguments, **options):
    make(library, *arguments, **options)
    class Function(library._FuncPtr):
        _flags_, _restype_ = library._FuncPtr._flags_, library._FuncPtr._restype_
        def __call__(self, *arguments):
            counts[self.__name__] += 1
            return super().__call__(*arguments)
    library._FuncPtr = Function

def write(*_):
    with open(os.environ["COUNTS"] + ".new", "w") as file:
        json.dump(counts, file)
    counts.clear()
    os.replace(file.name, os.environ["COUNTS"])

ctypes.CDLL.__init__ = make_counting
signal.signal(signal.SIGUSR2, write)
from serving.cli import main
main()
"""


@dataclass(slots=True)
class CountingServer:
    server: RunningServer
    file: Path

    def counts(self) -> Counter[str]:
        """Calls of compiled functions since the last time."""
        self.file.unlink(missing_ok=True)
        self.server.process.send_signal(signal.SIGUSR2)
        until(self.file.exists, "the counts are written")
        return Counter(json.loads(self.file.read_text()))


def words_message(datatype: str) -> bytes:
    """Raw ids that are strings or numbers, known and unknown, with weights."""
    words = [*WORDS, "unknown"]
    data = packed_strings([word.encode() for word in words])
    if datatype == "INT64":
        data = np.arange(len(words)).tobytes()
    request = infer_request({"age": np.zeros((len(words), 1), np.float32)}, model="words")
    weights = np.ones(len(words), np.float32)
    for name, kind, raw in (("word", datatype, data), ("word.weights", "FP32", weights.tobytes())):
        request.inputs.add(name=name, datatype=kind, shape=[len(words)])
        request.raw_input_contents.append(raw)
    return bytes(request.SerializeToString())


def sequences_message() -> bytes:
    model, generator = SEQUENCE_MODELS[SEQUENCES], np.random.default_rng(0)
    spec = model.spec(rows=ITEMS, history=HISTORY, precision=Precision.FP32)
    inputs = model.history(spec, generator, HISTORY // 2)
    inputs["candidate"] = generator.integers(0, ITEMS, 4)
    return bytes(infer_request(inputs, model=SEQUENCES).SerializeToString())


def predict_message() -> bytes:
    inputs = good_inputs(4)
    candidates = {name: inputs[name] for name in ("dense", "item", "brand")}
    return request_message(MODEL, user={"user": [3]}, candidates=candidates)


def typed_message() -> bytes:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    fields = {"int64": "int64_contents", "int32": "int_contents", "float32": "fp32_contents"}
    for name, array in good_inputs(4).items():
        datatype = DATATYPES[array.dtype.name]
        tensor = request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        getattr(tensor.contents, fields[array.dtype.name]).extend(array.ravel().tolist())
    return bytes(request.SerializeToString())


INFER = "/inference.GRPCInferenceService/ModelInfer"
PREDICT = "/sharded_infer.v1.Predictor/Predict"
# Weights of bags are among the usual inputs.
MESSAGES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "gRPC": (INFER, lambda: bytes(infer_request(good_inputs(4)).SerializeToString())),
    "gRPC, Predict": (PREDICT, predict_message),
    "gRPC, typed contents": (INFER, typed_message),
    "gRPC, sequences": (INFER, sequences_message),
    "gRPC, raw ids": (INFER, lambda: words_message("INT64")),
    "gRPC, strings": (INFER, lambda: words_message("BYTES")),
}


@contextmanager
def asking_by_shared_memory(server: RunningServer) -> Iterator[Callable[[], object]]:
    """What sends a call whose inputs and outputs lie in shared memory."""
    name, bytes_of_region, at = f"sharded-infer-{uuid.uuid4().hex}", 4096, 0
    region = shm.create_shared_memory_region(name, f"/{name}", bytes_of_region)
    inputs = []
    outputs = [tritonclient.grpc.InferRequestedOutput(one) for one in ("score", "labels")]
    try:
        for key, array in good_inputs(4).items():
            one = tritonclient.grpc.InferInput(key, array.shape, DATATYPES[array.dtype.name])
            shm.set_shared_memory_region(region, [array], offset=at)
            one.set_shared_memory(name, array.nbytes, at)
            inputs.append(one)
            at += array.nbytes
        for output, size in zip(outputs, (16, 48), strict=True):
            output.set_shared_memory(name, size, at)
            at += size
        with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
            client.register_system_shared_memory(name, f"/{name}", bytes_of_region)
            yield lambda: client.infer(MODEL, inputs, outputs=outputs)
    finally:
        shm.destroy_shared_memory_region(region)


@contextmanager
def asking(server: RunningServer, form: str) -> Iterator[Callable[[], object]]:
    """What sends a call of a form, and checks that it is answered."""
    if form in MESSAGES:
        path, write = MESSAGES[form]
        message = write()
        with grpc.insecure_channel(server.grpc_url) as channel:
            call = channel.unary_unary(path)
            yield lambda: call(message)
        return
    if form == "gRPC, stream":
        messages: queue.Queue[Any] = queue.Queue()
        with server.stub() as stub:
            answers = stub.ModelStreamInfer(iter(messages.get, None))
            request = infer_request(good_inputs(4))

            def ask() -> object:
                messages.put(request)
                return next(answers).infer_response.outputs[0]

            yield ask
            messages.put(None)
        return
    if form == "gRPC, shared memory":
        with asking_by_shared_memory(server) as ask:
            yield ask
        return
    inputs = good_inputs(4)
    body, headers = json.dumps({"inputs": json_inputs(inputs)}).encode(), {}
    if form == "HTTP, binary":
        listed = []
        for name, array in inputs.items():
            one = tritonclient.http.InferInput(name, array.shape, DATATYPES[array.dtype.name])
            one.set_data_from_numpy(array)
            listed.append(one)
        body, size = tritonclient.http.InferenceServerClient.generate_request_body(listed)
        headers = {"Inference-Header-Content-Length": str(size)}
    url = f"{server.http_url}/v2/models/{MODEL}/infer"
    with requests.Session() as session:
        yield lambda: session.post(url, data=body, headers=headers).raise_for_status()


@contextmanager
def counting_server(repository: Path, folder: Path, *options: object) -> Iterator[CountingServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTS", str(folder / "counts"))
        with running_server(
            repository, folder / "log", *options, forked=False, program=PROGRAM
        ) as server:
            yield CountingServer(server, folder / "counts")


@pytest.fixture(scope="module")
def counting(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingServer]:
    folder = tmp_path_factory.mktemp("counting")
    repository = shutil.copytree(ranker.repository, folder / "repository")
    publish_words(repository, "word", "plain")
    model = SEQUENCE_MODELS[SEQUENCES]
    spec = model.spec(rows=ITEMS, history=HISTORY, precision=Precision.FP32)
    items = {"item": nn.Embedding(ITEMS, spec.tables[0].dim)}
    publish(spec, items, model.tower(HISTORY), repository)
    with counting_server(repository, folder, "--shared-memory") as server:
        yield server


def calls_of_a_batch(server: CountingServer, ask: Callable[[], object]) -> Counter[str]:
    """Calls of compiled functions beside those of the tower."""
    # Threads are warm, and what happens once has happened.
    for _ in range(10):
        ask()
    server.counts()
    for _ in range(CALLS):
        ask()
    # What happens now and then, such as looking at certificates, is no part of a batch.
    counts = {n: round(c / CALLS) for n, c in server.counts().items() if n not in OF_THE_TOWER}
    return +Counter(counts)


@pytest.mark.parametrize(
    "form", [*MESSAGES, "gRPC, stream", "gRPC, shared memory", "HTTP, JSON", "HTTP, binary"]
)
def test_a_batch_calls_compiled_code_six_times_beside_its_tower(
    counting: CountingServer, form: str
) -> None:
    with asking(counting.server, form) as ask:
        counts = calls_of_a_batch(counting, ask)
    assert 0 < counts.total() <= MOST, counts


def test_default_rows_change_nothing_beside_the_lookup(tmp_path: Path) -> None:
    repository = publish_for_hosts(tmp_path, 2, 2000, default_row="zeros").repository
    message = infer_request(good_inputs(4))
    with ExitStack() as stack:
        hosts = stack.enter_context(running_hosts(repository, tmp_path, (0, 1), exit_code=None))
        file = hosts_file(tmp_path, hosts, "timeout_ms = 500")
        front = stack.enter_context(counting_server(repository, tmp_path, "--shard-hosts", file))
        stub = stack.enter_context(front.server.stub())
        hosts[1].is_ending = True
        hosts[1].process.kill()
        hosts[1].process.wait()
        until(
            lambda: stub.ModelInfer(message, timeout=SECONDS).parameters, "default rows are taken"
        )
        counts = calls_of_a_batch(front, lambda: stub.ModelInfer(message, timeout=SECONDS))
    around = ("transport_fetch", *(f"calls_{name}" for name in ("take", "begin", "finish", "end")))
    of_the_lookup = ("lookup", "client", "answer")
    for name in around:
        assert counts.pop(f"sharded_infer_{name}") == 1
    assert all(name.removeprefix("sharded_infer_").startswith(of_the_lookup) for name in counts)
