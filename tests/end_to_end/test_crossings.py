"""Calls of compiled code for a batch, counted in a real server by form of predict call."""

import json
import os
import queue
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import tritonclient.http

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
from tests.support.waiting import until

# Calls, one after another: each is a batch.
CALLS = 100
MOST = 6
# The tower's own layers.
OF_THE_TOWER = {"sharded_infer_product"}
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


@contextmanager
def asking(server: RunningServer, form: str) -> Iterator[Callable[[], object]]:
    """What sends a call of a form, and checks that it is answered."""
    inputs = good_inputs(4)
    if form == "gRPC":
        with server.stub() as stub:
            request = infer_request(inputs)
            yield lambda: stub.ModelInfer(request).outputs[0]
        return
    if form == "gRPC, stream":
        messages: queue.Queue[Any] = queue.Queue()
        with server.stub() as stub:
            answers = stub.ModelStreamInfer(iter(messages.get, None))
            request = infer_request(inputs)

            def ask() -> object:
                messages.put(request)
                return next(answers).infer_response.outputs[0]

            yield ask
            messages.put(None)
        return
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


@pytest.fixture(scope="module")
def counting(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountingServer]:
    folder = tmp_path_factory.mktemp("counting")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COUNTS", str(folder / "counts"))
        with running_server(
            ranker.repository, folder / "log", forked=False, program=PROGRAM
        ) as server:
            yield CountingServer(server, Path(os.environ["COUNTS"]))


@pytest.mark.parametrize("form", ["gRPC", "gRPC, stream", "HTTP, JSON", "HTTP, binary"])
def test_a_batch_calls_compiled_code_six_times_beside_its_tower(
    counting: CountingServer, form: str
) -> None:
    with asking(counting.server, form) as ask:
        # Threads are warm, and what happens once has happened.
        for _ in range(10):
            ask()
        counting.counts()
        for _ in range(CALLS):
            ask()
        counts = counting.counts()
    # What happens now and then, such as looking at certificates, is no part of a batch.
    each = {n: round(c / CALLS) for n, c in counts.items() if n not in OF_THE_TOWER}
    assert 0 < sum(each.values()) <= MOST, counts
