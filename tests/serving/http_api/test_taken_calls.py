"""Predict calls over HTTP, which compiled code reads and answers; Python rewrites unusual ones."""

import gzip
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import numpy as np
import pytest

from serving.config.server_config import ServerConfig
from serving.http_api.application import TakeUsual
from serving.http_api.exchange import HttpAnswer, HttpCall
from serving.http_api.http_server import http_limits
from serving.http_api.predictions import Predictions
from serving.http_api.routes import Route
from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadows import Shadows
from serving.scheduler.batch_threads import BatchThreads
from serving.transport.http2_server import Http2Server
from tests.serving.http_api.http_servers import Answering, serving_http
from tests.serving.inference.planes import ENDLESS, Plane, add_shadow, plane_of
from tests.support.requests_by_chance import check_same
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request, json_inputs
from tests.support.waiting import until

LENGTH = "Inference-Header-Content-Length"
DATATYPES = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}
PATH = f"/v2/models/{MODEL}/infer"
SECONDS = 30.0
# Of numbers, or of none.
TEXTS = "-0 0.0 -0.0 1E+2 1e-400 1e400 0.1e1 12345678901234567890 01 -01 1. .5 +1 1e 0x1 - inf"


@dataclass
class Api(Answering):
    """Predict calls; those that Python rewrites are counted."""

    predictions: Predictions
    by_python: list[HttpCall] = field(default_factory=list)

    def take(self, call: HttpCall, route: Route) -> None:
        self.by_python.append(call)
        self.predictions.take(call, route.names(call.request.path))

    def attach(self, server: Http2Server, respond: Callable[[int, HttpAnswer], None]) -> TakeUsual:
        self.predictions.attach(server, respond)
        return self.predictions.take_usual

    def run(self) -> None:
        self.predictions.run()


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
def serving(
    ranker: Ranker, *, runs: bool = True, shadows: Shadows | None = None, **fields: Any
) -> Iterator[Served]:
    plane = plane_of(ranker.repository, delay_us=0 if runs else ENDLESS, shadows=shadows)
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
        ({"parameters": {"unknown_ids": True}}, PATH),
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
    # Python rewrites calls with weights of encodings.
    assert taken == served.ask(body, {**headers, "Accept-Encoding": "gzip;q=0"}, path)
    assert len(served.api.by_python) == 1


@pytest.mark.parametrize("accepted", ["deflate, gzip", "br, DEFLATE", "identity"])
def test_long_answers_are_compressed_as_the_client_accepts(served: Served, accepted: str) -> None:
    body, headers = body_of(200, parameters={"binary_data_output": True})
    served.api.by_python.clear()
    taken = served.ask(body, {**headers, "Accept-Encoding": accepted})
    assert taken[0] == 200 and not served.api.by_python
    assert taken == served.ask(body, {**headers, "Accept-Encoding": f"{accepted}, br;q=0"})
    assert taken[1].get("content-encoding", "identity") in accepted.lower()
    assert len(served.api.by_python) == 1


def in_json(samples: int = 2, seed: int = 0, **changes: Any) -> bytes:
    """A body with its tensors in JSON; changes are of the input `dense`."""
    inputs = json_inputs(good_inputs(samples, seed))
    [dense] = [one for one in inputs if one["name"] == "dense"]
    dense |= changes
    return json.dumps({"id": "seven", "inputs": inputs}).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"data": [0.1, -1e-3, 3, -0, 16777217, 1e30, 2.5, -7]},
        {"data": [[0.1, 1e-40, 3.4e38, -0.0], [123456789012345678, 1, 2, 3]]},
        {"data": [1, 2, 3, 4], "shape": [1, 4], "parameters": {}},
    ],
)
def test_numbers_in_json_are_those_that_python_reads(
    served: Served, changes: dict[str, Any]
) -> None:
    body = in_json(**changes)
    served.api.by_python.clear()
    taken = served.ask(body, {})
    assert taken[0] == 200 and not served.api.by_python
    assert taken == served.ask(body, {"Accept-Encoding": "gzip;q=0"})
    assert len(served.api.by_python) == 1


@pytest.mark.parametrize("text", TEXTS.split())
@pytest.mark.parametrize(("name", "shape"), [("dense", "[1,4]"), ("user", "[4]")])
def test_texts_of_numbers_mean_what_they_mean_to_python(
    served: Served, name: str, shape: str, text: str
) -> None:
    datatype = "FP32" if name == "dense" else "INT64"
    one = f'{{"name":"{name}","datatype":"{datatype}","shape":{shape},"data":[1,{text},2,3]}}'
    body = f'{{"inputs":[{one}]}}'.encode()
    assert served.ask(body, {}) == served.ask(body, {"Accept-Encoding": "gzip;q=0"})


@pytest.mark.parametrize("is_binary", [False, True])
def test_mutated_bodies_are_answered_as_by_python(served: Served, is_binary: bool) -> None:
    chance = Random(1)
    for seed in range(200):
        body, headers = body_of(seed=seed) if is_binary else (in_json(seed=seed), {})
        mutated = bytearray(body)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(mutated))
            kind = chance.randrange(3)
            if kind == 0:
                mutated[at] = chance.choice(b'"[]{},:0123456789.-eE \x00\xff')
            elif kind == 1:
                del mutated[at]
            else:
                mutated[at:at] = mutated[chance.randrange(len(mutated)) :][: chance.randint(1, 9)]
        sent = bytes(mutated)
        by_python = served.ask(sent, {**headers, "Accept-Encoding": "gzip;q=0"})
        assert served.ask(sent, headers) == by_python, sent


@pytest.mark.parametrize(
    ("status", "changes"),
    [
        (400, {"data": [1, 2, 3]}),
        (400, {"data": [[1, 2, 3, 4], [1, 2, 3]]}),
        (400, {"data": [[1, 2, 3, 4], 5, 6, 7, 8]}),
        (400, {"data": [[[1], [2], [3], [4]], [[1], [2], [3], [4]]]}),
        (400, {"data": [True] * 8}),
        (400, {"data": ["1"] * 8}),
        (400, {"data": [1e300] * 8}),
        (400, {"data": [float("nan")] * 8}),
        (400, {"datatype": "INT64", "data": [1.0] * 8}),
        (400, {"datatype": "INT32", "data": [2**31] * 8}),
        (400, {"data": [1] * 8, "parameters": {"binary_data_size": 32}}),
    ],
)
def test_other_json_is_rewritten_or_refused_by_python(
    served: Served, status: int, changes: dict[str, Any]
) -> None:
    served.api.by_python.clear()
    assert served.ask(in_json(**changes), {})[0] == status
    assert len(served.api.by_python) == 1


@pytest.mark.parametrize(
    ("status", "spoilt"),
    [
        (400, {"outputs": [{"name": "unknown"}]}),
        (400, {"id": 7}),
        (400, {"inputs": []}),
        (200, {"id": "ä"}),
    ],
)
def test_what_is_unusual_is_rewritten_or_refused_by_python(
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


@pytest.mark.parametrize("samples", [2, 200])
def test_a_compressed_body_is_answered_as_a_plain_one(served: Served, samples: int) -> None:
    body, headers = body_of(samples, id="größe")
    packed = served.ask(gzip.compress(body), {**headers, "Content-Encoding": "gzip"})
    assert packed[0] == 200 and packed == served.ask(body, headers)


def test_calls_are_counted_as_those_of_other_transports(ranker: Ranker) -> None:
    with serving(ranker) as made:
        for seed in range(3):
            assert made.ask(*body_of(seed=seed))[0] == 200
        until(lambda: not made.plane.plane.calls.in_progress, "all calls have ended")
        assert made.plane.total("requests_total", code="OK") == 3
        assert not made.api.by_python


def test_bodies_are_kept_for_a_shadow_which_reads_the_same_tensors(ranker: Ranker) -> None:
    shadows, kept = Shadows("canary", 1.0, Random(3).random), list[ShadowRequest]()

    def all_kept() -> bool:
        while (taken := shadows.take()) is not None:
            kept.append(taken[0])
        return len(kept) == 4

    with serving(ranker, shadows=shadows) as made:
        store = made.plane.store
        add_shadow(store, made.plane.metrics, ranker)
        bodies = [body_of(), (in_json(), {})]
        # Python rewrites them, too.
        bodies += [(body, {**headers, "Accept-Encoding": "gzip;q=0"}) for body, headers in bodies]
        for body, headers in bodies:
            assert made.ask(body, headers)[0] == 200
        until(all_kept, "all are kept")
        assert len(made.api.by_python) == 2
        reader = store.get(MODEL).reader
        wanted = reader.read_message(infer_request(good_inputs(2)).SerializeToString())
        for request, (body, _) in zip(kept, bodies, strict=True):
            assert request.message == body
            check_same(request.read(reader), wanted)


# Compiled code reads the first one; the last one is rewritten on a thread of its own.
ENCODINGS = (("identity", 2), ("gzip;q=0", 2), ("gzip;q=0", 200))


@pytest.mark.parametrize(("accepted", "samples"), ENCODINGS)
def test_a_client_that_goes_takes_its_call_out_of_the_queue(
    ranker: Ranker, accepted: str, samples: int
) -> None:
    with serving(ranker, runs=False) as made:
        waiting = made.plane.plane.dispatcher.waiting
        body, headers = body_of(samples)
        connection = made.connect()
        connection.request("POST", PATH, body, {**headers, "Accept-Encoding": accepted})
        until(lambda: made.plane.plane.dispatcher.waiting[0] == 1, "it is queued")
        assert bool(made.api.by_python) == (accepted != "identity")
        assert made.plane.plane.calls.in_progress == 1
        connection.close()
        until(lambda: made.plane.plane.dispatcher.waiting == waiting, "it has left")
        until(lambda: not made.plane.plane.calls.in_progress, "it is not in progress")
        assert made.plane.total("requests_total", code="CANCELLED") == 1


@pytest.mark.parametrize("accepted", ["identity", "gzip;q=0"])
def test_calls_beyond_the_limit_or_while_draining_are_refused(
    ranker: Ranker, accepted: str
) -> None:
    with serving(ranker, runs=False, max_concurrent_requests=1) as made:
        body, headers = body_of()
        made.plane.plane.calls.add(1)
        status, names, answer = made.ask(body, headers)
        assert (status, names["retry-after"]) == (429, "1") and b"in progress: 1 " in answer
        made.plane.plane.calls.add(-1)
        connection = made.connect()
        connection.request("POST", PATH, body, {**headers, "Accept-Encoding": accepted})
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
