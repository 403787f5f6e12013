"""Admission, body reading and routing of HTTP requests."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Protocol

from serving.http_api.admission import HttpAdmission
from serving.http_api.connections.connection_context import Client, WhenLost
from serving.http_api.connections.request_head import RequestHead
from serving.http_api.exchange import (
    HttpAnswer,
    HttpError,
    HttpRequest,
    StatusError,
    error_answer,
    status_answer,
)
from serving.http_api.shared_pages import SharedPages
from serving.status import status_of

UNAUTHENTICATED = 401
_PAGE_THREADS = 1
# Pages in progress or waiting. Each takes milliseconds.
_MOST_PAGES = 64
_PROBES = ("/live", "/ready")
_READ = ("GET", "HEAD")
# For processes whose models are not loaded yet, or are unloaded already.
_NOT_NOW = error_answer(503, "no model can be asked: the server is loading or draining")


class Api(Protocol):
    """Handler of the protocol's paths."""

    def refuse(self, method: str, path: str) -> HttpAnswer | None:
        """Refusal of a request before its body is read, or None if it is admitted."""
        ...

    def body_bytes(self, method: str, path: str) -> int:
        """Largest body that a request may have; 0 if it takes none."""
        ...

    async def answer(self, request: HttpRequest, when_lost: WhenLost) -> HttpAnswer:
        """Answers a request; `when_lost` registers a callback for a client that disconnects."""
        ...


class Application:
    """Answers HTTP requests: the API answers the protocol's paths, the pages all others."""

    def __init__(
        self,
        page: Callable[[HttpRequest], HttpAnswer],
        probe: Callable[[str], HttpAnswer],
        api: Api | None,
        admission: HttpAdmission,
        without_api: HttpAnswer = _NOT_NOW,
    ) -> None:
        """Stores the API, and the pages for all other paths.

        A thread runs `page`, the event loop `probe`. `without_api` answers the API's paths of a
        process without models.
        """
        self._admission = admission
        self._without_api = without_api
        self._page = page
        self._probe = probe
        self._api = api
        self._threads = ThreadPoolExecutor(_PAGE_THREADS, thread_name_prefix="http-page")
        self._pages = 0
        self._shared = SharedPages(self._make_page)

    async def answer(self, head: RequestHead, client: Client) -> HttpAnswer:
        """Answers a request, errors included. Reads its body only if the request is admitted."""
        try:
            request = head.request
            self._admission.admit(request.method, request.path, request.headers, client.peer)
            if not self._is_api(request.path):
                return await self._answer_page(request)
            if self._api is None:
                return self._without_api
            refused = self._api.refuse(request.method, request.path)
            if refused is not None:
                return refused
            if head.has_body:
                most = self._api.body_bytes(request.method, request.path)
                if most:
                    request = _with_body(request, await client.read_body(most))
            try:
                return await self._api.answer(request, client.when_lost)
            finally:
                client.when_lost(None)
        except Exception as error:
            return answer_of(error)

    def close(self) -> None:
        """Stops the page threads after the pages in progress."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_api(self, path: str) -> bool:
        return path == "/v2" or path.startswith("/v2/")

    async def _answer_page(self, request: HttpRequest) -> HttpAnswer:
        if request.path in _PROBES and request.method in _READ:
            return self._probe(request.path)
        if self._pages >= _MOST_PAGES:
            return error_answer(503, "too many pages are asked for", (("Retry-After", "1"),))
        self._pages += 1
        try:
            return await self._shared.answer(request)
        finally:
            self._pages -= 1

    async def _make_page(self, request: HttpRequest) -> HttpAnswer:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._page, request)


def answer_of(error: Exception) -> HttpAnswer:
    """HTTP answer for an exception that was raised while answering."""
    if isinstance(error, HttpError):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, StatusError):
        return status_answer(error.status)
    answer = status_answer(status_of(error))
    if answer.status != UNAUTHENTICATED:
        return answer
    return replace(answer, headers=(*answer.headers, ("WWW-Authenticate", "Bearer")))


def _with_body(head: HttpRequest, body: bytes) -> HttpRequest:
    return HttpRequest(head.method, head.path, head.query, head.headers, body)
