import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving.config.server_config import ServerConfig
from serving.http_api.exchange import HttpAnswer, HttpRequest
from serving.http_api.predictions import Predictions
from serving.inference.data_plane import CallsInProgress
from tests.end_to_end.test_rest import document
from tests.serving.inference.planes import ENDLESS, plane_of
from tests.support.servers import MODEL, Ranker

NAMES = {"model": MODEL}
REQUEST = HttpRequest("POST", "", "", {}, json.dumps(document(2)).encode())


class Client:
    def __init__(self) -> None:
        self._told: Callable[[], None] | None = None

    def when_lost(self, told: Callable[[], None] | None) -> None:
        self._told = told

    def leave(self) -> None:
        assert self._told is not None
        self._told()


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

    async def ask(self, client: "Client", **headers: str) -> HttpAnswer:
        request = HttpRequest("POST", "", "", headers, REQUEST.body)
        return await self.predictions.answer(NAMES, request, client.when_lost)

    async def begin(self, client: "Client") -> "asyncio.Task[HttpAnswer]":
        """Ask, and return once the request waits."""
        asked = asyncio.create_task(self.ask(client))
        async with asyncio.timeout(10):
            while not self.standby.plane.dispatcher.waiting[0]:
                await asyncio.sleep(0.005)
        return asked


def error_of(answer: HttpAnswer) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body)["error"]


def test_a_request_leaves_the_queue_with_its_client(ranker: Ranker) -> None:
    async def run() -> None:
        waiting, client = Waiting(ranker), Client()
        asked = await waiting.begin(client)
        assert waiting.woken == 1
        client.leave()
        status, words = error_of(await asyncio.wait_for(asked, 10))
        assert status == 499 and words
        assert waiting.standby.plane.dispatcher.waiting == (0, 0)
        assert waiting.changes == [1, -1]

    asyncio.run(run())


def test_a_server_that_drains_takes_no_more_and_waits_for_those_it_has(ranker: Ranker) -> None:
    async def run() -> None:
        waiting, client = Waiting(ranker), Client()
        asked = await waiting.begin(client)
        waiting.predictions.drain()
        assert error_of(await waiting.ask(client)) == (503, "the server is draining")
        over = asyncio.ensure_future(asyncio.to_thread(waiting.predictions.wait, 10.0))
        # Nothing tells that it waits on.
        await asyncio.sleep(0.1)
        assert not over.done()
        client.leave()
        await asked
        await asyncio.wait_for(over, 5)

    asyncio.run(run())
