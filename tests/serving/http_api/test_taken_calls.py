"""Predict calls over HTTP that compiled code reads and answers."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from serving.config.server_config import ServerConfig
from serving.http_api.application import TakeUsual
from serving.http_api.exchange import HttpCall
from serving.http_api.http_server import http_limits
from serving.http_api.predictions import Predictions
from serving.http_api.routes import Route
from serving.scheduler.batch_threads import BatchThreads
from serving.transport.http2_server import Http2Server
from tests.serving.http_api.http_servers import Answering, serving_http
from tests.serving.inference.planes import ENDLESS, Plane, plane_of
from tests.support.servers import MODEL, Ranker, good_inputs
from tests.support.waiting import until

LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
PATH = f"/v2/models/{MODEL}/infer"
SECONDS = 30.0


@dataclass
class Api(Answering):
    """Predict calls; those that Python reads are counted."""

    predictions: Predictions
    by_python: list[HttpCall] = field(default_factory=list)

    def take(self, call: HttpCall, route: Route) -> None:
        self.by_python.append(call)
        self.predictions.take(call, route.names(call.request.path))

    def attach(self, server: Http2Server) -> TakeUsual:
        self.predictions.attach(server)
        return self.predictions.take_usual

    def lose(self, number: int) -> None:
        self.predictions.lose(number)


@dataclass
class Served:
    plane: Plane
    api: Api
    port: int

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def ask(
        self, body: bytes, headers: Mapping[str, str], path: str = PATH
    ) -> tuple[int, dict[str, str], bytes]:
        connection = self.connect()
        try:
            connection.putrequest("POST", path, skip_accept_encoding=True)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            names.pop("date")
            return answer.status, names, answer.read()
        finally:
            connection.close()


@contextmanager
def serving(ranker: Ranker, *, runs: bool = True, **fields: Any) -> Iterator[Served]:
    plane = plane_of(ranker.repository, delay_us=0 if runs else ENDLESS)
    config = ServerConfig(Path("unused"), **fields)
    threads = BatchThreads(plane.plane.dispatcher)
    api = Api(Predictions(config, plane.plane, threads.wake))
    if runs:
        threads.start(lambda: None)
    with serving_http(http_limits(config), api) as pages:
        yield Served(plane, api, pages.server_port)
    threads.stop()


@pytest.fixture(scope="module")
def served(ranker: Ranker) -> Iterator[Served]:
    with serving(ranker) as made:
        yield made


def body_of(samples: int = 2, seed: int = 0, **more: Any) -> tuple[bytes, dict[str, str]]:
    inputs = {name: np.ascontiguousarray(a) for name, a in good_inputs(samples, seed).items()}
    document = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": DATATYPES[array.dtype.name],
                "parameters": {"binary_data_size": array.nbytes},
            }
            for name, array in inputs.items()
        ],
        **more,
    }
    text = json.dumps(document).encode()
    return text + b"".join(a.tobytes() for a in inputs.values()), {LENGTH: str(len(text))}


def binary(*wanted: bool) -> list[dict[str, Any]]:
    names = ("score", "labels")
    return [
        {"name": name, "parameters": {"binary_data": one}}
        for name, one in zip(names, wanted, strict=False)
    ]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({}, PATH),
        ({"id": "seven"}, f"/v2/models/{MODEL}/versions/1/infer?trace=no"),
        ({"parameters": {"binary_data_output": True, "priority": 2, "timeout": 10**7}}, PATH),
        ({"outputs": binary(True, False)}, PATH),
        ({"outputs": [{"name": "labels"}], "parameters": {"binary_data_output": True}}, PATH),
    ],
)
def test_an_answer_has_the_head_and_bytes_that_python_writes(
    served: Served, more: dict[str, Any], path: str
) -> None:
    body, headers = body_of(**more)
    served.api.by_python.clear()
    taken = served.ask(body, headers, path)
    assert taken[0] == 200 and not served.api.by_python
    # Compiled code compresses nothing, and this is too short for Python to.
    assert taken == served.ask(body, {**headers, "Accept-Encoding": "gzip"}, path)
    assert len(served.api.by_python) == 1


@pytest.mark.parametrize(
    ("status", "spoilt"),
    [
        (400, {"outputs": [{"name": "unknown"}]}),
        (400, {"id": 7}),
        (400, {"inputs": []}),
        (200, {"id": "ä"}),
        (200, {"parameters": {"unknown_ids": True}}),
    ],
)
def test_what_is_unusual_is_read_and_refused_by_python(
    served: Served, status: int, spoilt: dict[str, Any]
) -> None:
    served.api.by_python.clear()
    answer = served.ask(*body_of(**spoilt))
    assert answer[0] == status and len(served.api.by_python) == 1
    assert status == 200 or json.loads(answer[2])["error"]


@pytest.mark.parametrize(
    ("path", "headers", "words"),
    [
        ("/v2/models/nobody/infer", {}, "nobody"),
        (f"/v2/models/{MODEL}/versions/9/infer", {}, "9"),
        (PATH, {LENGTH: "-1"}, "Inference-Header-Content-Length"),
        (PATH, {LENGTH: str(2**40)}, "the body has"),
        (PATH, {"Content-Encoding": "br"}, "Content-Encoding"),
    ],
)
def test_heads_that_are_wrong_are_refused_in_pythons_words(
    served: Served, path: str, headers: dict[str, str], words: str
) -> None:
    body, usual = body_of()
    status, _, answer = served.ask(body, {**usual, **headers}, path)
    assert status in {400, 404} and words in json.loads(answer)["error"]


def test_an_escaped_path_is_the_same_model(served: Served) -> None:
    assert served.ask(*body_of(), f"/v2/models/%{ord(MODEL[0]):x}{MODEL[1:]}/infer")[0] == 200


def test_calls_are_counted_as_those_of_other_transports(ranker: Ranker) -> None:
    with serving(ranker) as made:
        for seed in range(3):
            assert made.ask(*body_of(seed=seed))[0] == 200
        until(lambda: not made.plane.plane.calls.in_progress, "all calls have ended")
        assert made.plane.total("requests_total", code="OK") == 3
        assert not made.api.by_python


def test_a_client_that_goes_takes_its_call_out_of_the_queue(ranker: Ranker) -> None:
    with serving(ranker, runs=False) as made:
        waiting = made.plane.plane.dispatcher.waiting
        body, headers = body_of()
        connection = made.connect()
        connection.request("POST", PATH, body, {**headers, "Accept-Encoding": "identity"})
        until(lambda: made.plane.plane.dispatcher.waiting[0] == 1, "it is queued")
        assert not made.api.by_python and made.plane.plane.calls.in_progress == 1
        connection.close()
        until(lambda: made.plane.plane.dispatcher.waiting == waiting, "it has left")
        until(lambda: not made.plane.plane.calls.in_progress, "it is not in progress")
        assert made.plane.total("requests_total", code="CANCELLED") == 1


def test_calls_beyond_the_limit_or_while_draining_are_refused(ranker: Ranker) -> None:
    with serving(ranker, runs=False, max_concurrent_requests=1) as made:
        body, headers = body_of()
        made.plane.plane.calls.add(1)
        status, names, answer = made.ask(body, headers)
        assert (status, names["retry-after"]) == (429, "1") and b"in progress: 1 " in answer
        made.plane.plane.calls.add(-1)
        connection = made.connect()
        connection.request("POST", PATH, body, {**headers, "Accept-Encoding": "identity"})
        until(lambda: made.plane.plane.dispatcher.waiting[0] == 1, "it is queued")
        made.api.predictions.drain()
        over = Thread(target=made.api.predictions.wait, args=(SECONDS,))
        over.start()
        # Nothing tells that it waits on.
        over.join(0.1)
        assert over.is_alive()
        connection.close()
        until(lambda: not over.is_alive(), "it waits no longer")
        status, _, answer = made.ask(body, headers)
        assert status == 503 and b"draining" in answer


def test_a_call_that_would_be_too_late_is_refused_before_it_is_read(ranker: Ranker) -> None:
    with serving(ranker, runs=False) as made:
        body, headers = body_of()
        connection = made.connect()
        connection.request("POST", PATH, body, {**headers, "Accept-Encoding": "identity"})
        until(lambda: made.plane.plane.dispatcher.waiting[0] == 1, "it is queued")
        # Its tensors are missing.
        text = body[: int(headers[LENGTH])].replace(
            b'{"inputs"', b'{"parameters":{"timeout":1},"inputs"'
        )
        status, _, answer = made.ask(text, {LENGTH: str(len(text))})
        assert status == 504 and json.loads(answer) == {
            "error": "the deadline cannot be met: more waits than can be answered"
        }
        assert not made.api.by_python
        connection.close()
