import json
import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from serving.config.server_config import ServerConfig
from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest
from serving.http_api.predictions import Predictions
from serving.inference.data_plane import CallsInProgress
from tests.end_to_end.test_rest import document
from tests.serving.inference.planes import ENDLESS, plane_of
from tests.support.servers import MODEL, Ranker
from tests.support.waiting import until

NAMES = {"model": MODEL}
BODY = json.dumps(document(2)).encode()
SECONDS = 10.0


class Waiting:
    """Predictions that never run, so that each waits until something else ends it."""

    def __init__(self, ranker: Ranker) -> None:
        self.standby = plane_of(ranker.repository, delay_us=ENDLESS)
        self.changes: list[int] = []
        self.woken = 0
        self.standby.plane.calls = CallsInProgress(self.changes.append)
        plane = self.standby.plane
        self.predictions = Predictions(ServerConfig(Path("unused")), plane, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def ask(self) -> tuple[HttpCall, Callable[[], HttpAnswer]]:
        answers: SimpleQueue[HttpAnswer] = SimpleQueue()
        call = HttpCall(HttpRequest("POST", "", "", {}, BODY), answers.put)
        self.predictions.take(call, NAMES)
        return call, lambda: answers.get(timeout=SECONDS)


def error_of(answer: HttpAnswer) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body)["error"]


def test_a_request_leaves_the_queue_with_its_client(ranker: Ranker) -> None:
    waiting = Waiting(ranker)
    call, answer = waiting.ask()
    assert waiting.standby.plane.dispatcher.waiting[0] == 1 and waiting.woken == 1
    call.lose()
    status, words = error_of(answer())
    assert status == 499 and words
    assert waiting.standby.plane.dispatcher.waiting == (0, 0)
    assert waiting.changes == [1, -1]


def test_a_server_that_drains_takes_no_more_and_waits_for_those_it_has(ranker: Ranker) -> None:
    waiting = Waiting(ranker)
    call, answer = waiting.ask()
    waiting.predictions.drain()
    assert error_of(waiting.ask()[1]()) == (503, "the server is draining")
    over = threading.Thread(target=waiting.predictions.wait, args=(SECONDS,))
    over.start()
    # Nothing tells that it waits on.
    over.join(0.1)
    assert over.is_alive()
    call.lose()
    answer()
    until(lambda: not over.is_alive(), "it waits no longer")
