"""Predict calls over HTTP that wait: cancelled with their clients, refused by a draining server."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from serving.config import ServerConfig
from serving.lane import Mode
from serving.rest.exchange import HttpAnswer, HttpRequest
from serving.rest.predictions import Predictions
from serving.rpc_handlers import CallCount
from tests.serving.conftest import MODEL, Ranker, publish_ranker
from tests.serving.rest.test_rest_server import document
from tests.serving.test_inference import Desk

NAMES = {"model": MODEL}
REQUEST = HttpRequest("POST", "", "", {}, json.dumps(document(2)).encode())


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("waiting") / "repository")


class Waiting:
    """Predictions that nobody runs, so that each waits until something else ends it."""

    def __init__(self, ranker: Ranker) -> None:
        self.desk = Desk(ranker, Mode.BATCHED)
        self.changes: list[int] = []
        self.woken = 0
        calls = CallCount(self.changes.append)
        config = ServerConfig(Path("unused"), max_concurrent_requests=1)
        self.predictions = Predictions(config, self.desk.inference, calls, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def ask(self, left: asyncio.Event, **headers: str) -> HttpAnswer:
        async def gone() -> None:
            await left.wait()

        request = HttpRequest("POST", "", "", headers, REQUEST.body)
        return await self.predictions.answer(NAMES, request, gone)

    async def until_waiting(self) -> None:
        async with asyncio.timeout(10):
            while not self.desk.inference.dispatcher.waiting[0]:
                await asyncio.sleep(0.005)


def error_of(answer: HttpAnswer) -> tuple[int, Any]:
    return answer.status, json.loads(answer.body)["error"]


def test_a_request_leaves_the_queue_with_its_client(ranker: Ranker) -> None:
    async def run() -> None:
        waiting, left = Waiting(ranker), asyncio.Event()
        asked = asyncio.ensure_future(waiting.ask(left))
        await waiting.until_waiting()
        assert waiting.woken == 1
        left.set()
        status, words = error_of(await asyncio.wait_for(asked, 10))
        assert status == 499 and words
        assert waiting.desk.inference.dispatcher.waiting == (0, 0)
        assert waiting.changes == [1, -1]

    asyncio.run(run())


def test_one_more_than_may_be_in_progress_is_refused(ranker: Ranker) -> None:
    async def run() -> None:
        waiting, left = Waiting(ranker), asyncio.Event()
        asked = asyncio.ensure_future(waiting.ask(left))
        await waiting.until_waiting()
        refused = waiting.predictions.refuse()
        assert refused is not None and refused.status == 429
        assert ("Retry-After", "1") in refused.headers
        assert (await waiting.ask(left)).status == 429
        left.set()
        await asked
        assert waiting.predictions.refuse() is None

    asyncio.run(run())


def test_a_server_that_drains_takes_no_more_and_waits_for_those_it_has(ranker: Ranker) -> None:
    async def run() -> None:
        waiting, left = Waiting(ranker), asyncio.Event()
        asked = asyncio.ensure_future(waiting.ask(left))
        await waiting.until_waiting()
        waiting.predictions.drain()
        assert error_of(await waiting.ask(left)) == (503, "the server is draining")
        over = asyncio.ensure_future(asyncio.to_thread(waiting.predictions.wait, 10.0))
        await asyncio.sleep(0.1)
        assert not over.done()
        left.set()
        await asked
        await asyncio.wait_for(over, 5)

    asyncio.run(run())
