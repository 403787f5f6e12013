import http.server
import json
import threading
from dataclasses import replace

import pytest

from serving.bench.load.http_generator import run_http_closed
from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import target_of
from sharded_infer.errors import InputError
from tests.support.servers import Ranker, RunningServer, good_inputs, infer_request

MESSAGES = [infer_request(good_inputs(3, seed)).SerializeToString() for seed in range(4)]


def http_target(server: RunningServer) -> Target:
    return replace(target_of(server.http_address), is_http=True)


def test_every_call_is_answered_with_the_scores_of_its_message(
    server: RunningServer, ranker: Ranker
) -> None:
    result = run_http_closed(http_target(server), MESSAGES, concurrency=3, seconds=0.5)
    assert result.counts == {"OK": len(result.codes)} and len(result.codes) > 10
    assert not result.errors and not result.reconnects.any()
    assert result.connection_calls.sum() == len(result.codes) and len(result.connection_calls) == 3
    assert (result.latency > 0).all() and result.ok_per_second > 0
    assert sorted(set(result.message_index)) == sorted(result.responses) == [0, 1, 2, 3]
    for seed, body in result.responses.items():
        expected = ranker.predict(good_inputs(3, seed))
        scores = b"".join(expected[name].tobytes() for name in ("score", "labels"))
        assert body.endswith(scores)
        document = json.loads(body.removesuffix(scores))
        assert [output["name"] for output in document["outputs"]] == ["score", "labels"]


def test_calls_of_the_warm_up_are_left_out(server: RunningServer) -> None:
    result = run_http_closed(
        http_target(server), MESSAGES, concurrency=2, seconds=0.3, warm_up_seconds=0.1
    )
    assert result.counts == {"OK": len(result.codes)} and sorted(result.responses) == [0, 1, 2, 3]
    assert (result.scheduled >= 0).all() and result.connection_calls.sum() > len(result.codes)


def test_refusals_are_counted_by_their_code(server: RunningServer) -> None:
    other = infer_request(good_inputs(1), model="other").SerializeToString()
    result = run_http_closed(http_target(server), [other], concurrency=1, seconds=0.2)
    assert set(result.counts) == {"NOT_FOUND"} and "other" in result.errors[5]
    assert result.ok_in_window == 0 and not result.responses


def test_lost_connections_are_replaced_and_their_calls_unavailable() -> None:
    class Closing(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Closing) as closing:
        threading.Thread(target=closing.serve_forever, daemon=True).start()
        result = run_http_closed(
            Target("127.0.0.1", closing.server_port, is_http=True), MESSAGES, concurrency=1,
            seconds=0.2,
        )  # fmt: skip
        closing.shutdown()
    assert set(result.counts) == {"UNAVAILABLE"} and result.reconnects.sum() > 0


def test_without_a_server_it_is_refused() -> None:
    with pytest.raises(InputError, match="no connection"):
        run_http_closed(Target("127.0.0.1", 1, is_http=True), MESSAGES, concurrency=1, seconds=0.1)
