"""HTTP that lies, stalls or floods: refused with a 4xx, and everybody else is answered."""

import gzip
import json
import zlib
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from tests.attacks.conftest import attacked_server
from tests.attacks.http_client import INFER, exchange, post
from tests.support.servers import MODEL, Ranker, RunningServer, good_inputs, json_inputs

GOOD = {"inputs": json_inputs(good_inputs(2))}
GOOD_TEXT = json.dumps(GOOD).encode()
LENGTHS = ("-1", "+1", "99999999", "9" * 5000, "", "1, 1", "\u00b2")


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("http") / "stderr"
    with attacked_server(ranker.repository, log, "--max-message-mib", "2") as running:
        yield running


@pytest.fixture(autouse=True)
def _lives(server: RunningServer) -> Iterator[None]:
    yield
    status, answer = post(server, GOOD_TEXT)
    assert status == 200, answer


def with_input(**changed: Any) -> bytes:
    request = deepcopy(GOOD)
    request["inputs"][0].update(changed)
    return json.dumps(request).encode()


MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": b'{"id": "\xff"}',
    "deep lists": b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "Infinity": b'{"inputs": [{"name": "dense", "data": [-Infinity]}]}',
    "an integer of 10,000 digits": b'{"id": ' + b"9" * 10_000 + b"}",
    "half a surrogate pair": b'{"id": "\\ud800", "inputs": []}',
    "a number outside fp32": with_input(data=[1e39] * 8, shape=[2, 4]),
    "fractions for ids": with_input(datatype="INT64", data=[0.5] * 8, shape=[2, 4]),
    "an enormous shape": with_input(shape=[2**62, 2**62]),
    "a shape of 10,000": with_input(shape=[1] * 10_000),
    "data and binary": with_input(parameters={"binary_data_size": 0}),
    "10,000 inputs": json.dumps(
        {"inputs": [{"name": f"i{n}", "datatype": "FP32", "shape": [1], "data": [1]}
                    for n in range(10_000)]}
    ).encode(),
    "an unknown region": with_input(parameters={"shared_memory_region": "../x"}),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_refused_with_words(server: RunningServer, case: str) -> None:
    status, answer = post(server, MALFORMED[case])
    # More inputs than any request may have.
    assert status == (429 if case == "10,000 inputs" else 400), answer
    assert answer["error"]


def test_a_wrong_length_of_the_json_is_refused(server: RunningServer) -> None:
    size = len(GOOD_TEXT)
    # The last leaves bytes that belong to no input.
    for length, more in (*((said, b"") for said in LENGTHS), (size - 1, b""), (size, b"x")):
        headers = {"Inference-Header-Content-Length": str(length)}
        assert post(server, GOOD_TEXT + more, headers)[0] == 400


def test_a_body_that_is_no_gzip_or_goes_on_after_it_is_refused(server: RunningServer) -> None:
    text = GOOD_TEXT
    assert post(server, gzip.compress(text), {"Content-Encoding": "gzip"})[0] == 200
    assert post(server, zlib.compress(text), {"Content-Encoding": "deflate"})[0] == 200
    for encoding, body in (
        ("deflate", gzip.compress(text)),
        ("br", text),
        ("gzip, gzip", gzip.compress(gzip.compress(text))),
    ):
        assert post(server, body, {"Content-Encoding": encoding})[0] == 400


@pytest.mark.parametrize("path", [INFER, "/v2/repository/index"])
def test_a_bomb_is_not_inflated(server: RunningServer, path: str) -> None:
    bomb = gzip.compress(bytes(200 * 2**20), 9)
    assert len(bomb) < 2**20
    status, answer = post(server, bomb, {"Content-Encoding": "gzip"}, path)
    assert status == 429 and "bytes" in answer["error"]


def test_a_body_larger_than_allowed_is_refused_however_it_comes(server: RunningServer) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode()
    came = exchange(server, head + b"Content-Length: 99999999999999999999999\r\n\r\n")
    assert b" 429 " in came or b" 400 " in came
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    try:
        came = exchange(server, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 64)
    except (BrokenPipeError, ConnectionResetError):
        return  # it is not listened to any more
    assert b" 429 " in came or not came


@pytest.mark.parametrize(
    "rest",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        b"Content-Length: 4x\r\n\r\nabcd",
        b"X: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["both lengths", "a length that is none", "huge headers"],
)
def test_an_ambiguous_message_ends_its_connection(server: RunningServer, rest: bytes) -> None:
    came = exchange(server, f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode() + rest)
    # One answer and no second: what follows is no request.
    assert came.count(b"HTTP/1.1 ") == 1, came
    assert came.split()[1] in {b"400", b"431"}, came


def test_requests_without_waiting_are_answered_in_their_order(server: RunningServer) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(GOOD_TEXT)}\r\n\r\n".encode()
    last = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    came = exchange(server, (head + GOOD_TEXT) * 20 + last)
    assert came.count(b"HTTP/1.1 200") == 21
    assert came.endswith(b"live\n") and came.count(b"live\n") == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v2/models/..%2F..%2Fetc%2Fpasswd/infer",
        "/v2/models/../../etc/passwd",
        f"/v2/models/{MODEL}/versions/..%2F1/infer",
        f"/v2/models/{MODEL}/versions/{'9' * 4000}/infer",
        f"/v2/models/{'m' * 8000}/infer",
        "/dashboard/..%2f..%2fpyproject.toml",
        "/dashboard/../../pyproject.toml",
    ],
)
def test_a_path_with_other_names_finds_nothing(server: RunningServer, path: str) -> None:
    if path.endswith("infer"):
        assert post(server, GOOD_TEXT, path=path)[0] == 404
    else:
        came = exchange(server, f"GET {path} HTTP/1.0\r\n\r\n".encode())
        assert came.split()[1] == b"404"


def test_binary_tensors_of_a_wrong_size_are_refused(server: RunningServer) -> None:
    content = np.zeros((1, 4), np.float32).tobytes()

    def body(size: object) -> tuple[bytes, dict[str, str]]:
        text = json.dumps(
            {"inputs": [{"name": "dense", "datatype": "FP32", "shape": [1, 4],
                         "parameters": {"binary_data_size": size}}]}
        ).encode()  # fmt: skip
        return text + content, {"Inference-Header-Content-Length": str(len(text))}

    assert post(server, *body(16))[0] == 200
    for size in (15, 17, 0, -16, 2**63, 2**70, 16.0, "16", True, [16]):
        assert post(server, *body(size))[0] == 400
