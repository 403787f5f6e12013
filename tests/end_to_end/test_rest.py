"""REST against servers as users start them, one process and several; and the limit of calls."""

import http.client
import json
import os
import signal
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np

from tests.support.server_pages import samples
from tests.support.server_processes import children_of
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    json_inputs,
    running_server,
)
from tests.support.waiting import until

INFER = f"/v2/models/{MODEL}/infer"


def connect(server: RunningServer) -> http.client.HTTPConnection:
    parts = urlsplit(server.metrics_url)
    return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=20)


def ask(
    server: RunningServer,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, http.client.HTTPMessage]:
    """Status, the answer's JSON or text, and its headers."""
    with closing(connect(server)) as connection:
        text = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, text, headers or {})
        response = connection.getresponse()
        came = response.read()
    is_json = response.headers.get("Content-Type") == "application/json"
    return response.status, json.loads(came) if is_json and came else came, response.headers


def document(batch: int, **parameters: object) -> dict[str, Any]:
    return {"id": "a", "inputs": json_inputs(good_inputs(batch)), "parameters": parameters}


def test_json_in_and_out_has_the_scores_to_the_bit(server: RunningServer, ranker: Ranker) -> None:
    status, answer, headers = ask(server, "POST", INFER, document(300))
    assert status == 200 and headers["Content-Type"] == "application/json"
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("a", MODEL, "1")
    expected = ranker.predict(good_inputs(300))
    for output in answer["outputs"]:
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        assert np.array_equal(found, expected[output["name"]])
    accept = {"Accept-Encoding": "gzip"}
    _, packed, headers = ask(server, "POST", INFER, document(300, binary_data_output=True), accept)
    assert headers["Content-Encoding"] == "gzip" and len(packed) < 300 * 16
    assert int(headers["Inference-Header-Content-Length"]) > 0
    # A deadline is one, whatever the transport.
    code = (("code", "DEADLINE_EXCEEDED"), ("model", MODEL), ("version", "1"))
    late = "sharded_infer_requests_total", code
    before = samples(server.metrics_url).get(late, 0)
    status, answer, _ = ask(server, "POST", INFER, document(300, timeout=1))
    assert status == 504 and answer["error"]
    assert samples(server.metrics_url)[late] == before + 1
    for path, method in (("/v2", "HEAD"), ("/v2/health/ready", "GET"), ("/ready", "GET")):
        assert ask(server, method, path)[0] == 200
    status, _, headers = ask(server, "DELETE", "/v2/logging")
    assert status == 405 and headers["Allow"] == "GET, POST, HEAD"


def test_calls_over_the_limit_at_once_are_refused(ranker: Ranker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(ranker.repository, log, "--max-concurrent-requests", 2) as server:
        request, codes = infer_request(good_inputs(2000)), set[grpc.StatusCode]()
        with server.stub() as stub:

            def some_are_exhausted() -> bool:
                calls = [stub.ModelInfer.future(request, timeout=30) for _ in range(40)]
                codes.update(call.code() for call in calls)
                return grpc.StatusCode.RESOURCE_EXHAUSTED in codes

            # A busy machine may bring the calls one after another.
            until(some_are_exhausted, "more came at once than may")
            assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert stub.ModelInfer(request, timeout=30).model_name == MODEL
        in_flight = "sharded_infer_requests_in_flight", ()
        until(lambda: samples(server.metrics_url)[in_flight] == 0, "all calls have ended")


def test_every_worker_answers_and_another_process_while_none_does(
    ranker: Ranker, tmp_path: Path
) -> None:
    options = ("--workers", 2, "--shared-memory")
    with running_server(ranker.repository, tmp_path / "log", *options) as server:

        def scored() -> bool:
            try:
                return ask(server, "POST", INFER, document(2))[0] == 200
            except (ConnectionError, http.client.HTTPException):
                return False

        for _ in range(40):
            status, answer, _ = ask(server, "POST", INFER, document(2))
            assert status == 200, answer
        assert ask(server, "GET", "/v2/models/stats")[1]["model_stats"][0]["inference_count"] == 80
        killed = set(children_of(server.process.pid))
        for child in killed:
            # The standby process and the repository watcher too: everyone comes back.
            os.kill(child, signal.SIGKILL)
        # That it is not ready meanwhile may be over before anyone looks.
        until(
            lambda: len(set(children_of(server.process.pid)) - killed) == len(killed),
            "all are replaced",
        )
        until(lambda: ask_ready(server) == 200, "ready again")
        assert all(scored() for _ in range(20))
        with closing(connect(server)) as kept:
            kept.request("GET", "/v2/health/ready")
            assert kept.getresponse().read() == b""
            server.process.send_signal(signal.SIGTERM)
            # The server ends at once: that it drains may not be seen.
            until(lambda: ask_ready(server) != 200, "draining")
        assert server.process.wait(30) == 0
    assert "internal error" not in server.log.read_text()


def ask_ready(server: RunningServer) -> int:
    try:
        return ask(server, "GET", "/ready")[0]
    except (ConnectionError, http.client.HTTPException, TimeoutError):
        return 0
