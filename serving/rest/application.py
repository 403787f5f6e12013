"""The ASGI application: who is let in, whose body is read, and who answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

from kernels.wording import counted
from serving.refusals import RateLimitError
from serving.rest.bodies import Bodies, Message, Receive, discard_body, has_body
from serving.rest.connection import HttpLimits
from serving.rest.door import HttpDoor
from serving.rest.exchange import (
    HttpAnswer,
    HttpError,
    HttpRequest,
    RpcStatusError,
    error_answer,
    refusal_answer,
)
from serving.status import status_of
from sharded_infer.errors import RequestError

Send = Callable[[Message], Awaitable[None]]
_MOST_HEADERS = 100
UNAUTHENTICATED = 401
_VERSIONS = ("1.0", "1.1")
_PAGE_THREADS = 2


class Api(Protocol):
    """What answers the protocol's paths."""

    def refuse(self, method: str, path: str) -> HttpAnswer | None:
        """Refuses a request before its body is read; None: it may come."""
        ...

    def body_bytes(self, method: str, path: str) -> int:
        """The bytes that a request's body may have; 0: it takes none."""
        ...

    async def answer(self, request: HttpRequest, gone: Callable[[], Awaitable[None]]) -> HttpAnswer:
        """Answers a request; `gone` returns when its client is not there any more."""
        ...


class Application:
    """Answers HTTP requests: the protocol's paths by the API, all others by the pages."""

    def __init__(
        self,
        page: Callable[[HttpRequest], HttpAnswer],
        api: Api | None,
        limits: HttpLimits,
        door: HttpDoor,
    ) -> None:
        """Keeps what answers.

        Args:
            page: answers any path that is not the protocol's, on a thread.
            api: answers the protocol's; None: this process has no models.
            limits: of each request.
            door: lets requests in.
        """
        self._door = door
        self._page = page
        self._api = api
        self._header_bytes = limits.header_bytes
        self._bodies = Bodies(limits)
        self._threads = ThreadPoolExecutor(_PAGE_THREADS, thread_name_prefix="http-page")

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI has it."""
        unread = True
        try:
            head = _head(scope, self._header_bytes)
            unread = has_body(head.headers)
            client = scope.get("client")
            peer = "" if client is None else f"{client[0]}:{client[1]}"
            self._door.admit(head.method, head.path, head.headers, peer)
            answer, most = None, 0
            if self._is_api(head.path) and self._api is not None:
                answer = self._api.refuse(head.method, head.path)
                most = self._api.body_bytes(head.method, head.path)
            if answer is None and unread and most:
                async with self._bodies.read(head.headers, receive, most) as body:
                    unread = False
                    answer = await self._answer(_with_body(head, body), receive)
            elif answer is None:
                answer = await self._answer(head, None if unread else receive)
        except Exception as error:
            answer = answer_of(error)
        if not unread:
            # Where there are no models, others may have the next request.
            await _send(send, answer, close=self._api is None)
            return
        # What is left of the body would be read as the next request.
        await _send(send, answer, close=True, more=True)
        await discard_body(receive)
        await send({"type": "http.response.body"})

    def close(self) -> None:
        """Ends the threads, after what they do."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _is_api(self, path: str) -> bool:
        return path == "/v2" or path.startswith("/v2/")

    async def _answer(self, request: HttpRequest, receive: Receive | None) -> HttpAnswer:
        async def gone() -> None:
            if receive is None:
                # Only what asks for a body would say so.
                await asyncio.Event().wait()
            elif (await receive())["type"] != "http.disconnect":
                await gone()

        if not self._is_api(request.path):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._page, request)
        if self._api is None:
            return error_answer(503, "no model can be asked: the server is loading or draining")
        return await self._api.answer(request, gone)


def answer_of(error: Exception) -> HttpAnswer:
    """The answer that an exception becomes.

    Args:
        error: what was raised while answering.
    """
    if isinstance(error, HttpError):
        return error_answer(error.status, str(error), error.headers)
    if isinstance(error, RpcStatusError):
        return refusal_answer(error.code, str(error), error.retry_ms)
    retry_ms = error.retry_seconds * 1e3 if isinstance(error, RateLimitError) else None
    answer = refusal_answer(*status_of(error), retry_ms)
    if answer.status != UNAUTHENTICATED:
        return answer
    return replace(answer, headers=(*answer.headers, ("WWW-Authenticate", "Bearer")))


def _head(scope: Mapping[str, Any], most_bytes: int) -> HttpRequest:
    pairs = scope["headers"]
    if scope["http_version"] not in _VERSIONS:
        raise RequestError(f"HTTP/{scope['http_version']}: expected HTTP/1.1 or HTTP/1.0")
    # The connection limits what comes in pieces; what came in one piece is counted here.
    size = len(scope["raw_path"]) + sum(len(name) + len(value) for name, value in pairs)
    if size > most_bytes:
        raise HttpError(431, f"{counted(size, 'byte')} of headers, expected at most {most_bytes}")
    if len(pairs) > _MOST_HEADERS:
        raise HttpError(431, f"{len(pairs)} headers, expected at most {_MOST_HEADERS}")
    headers: dict[str, str] = {}
    for name, value in pairs:
        key = name.decode("latin-1").lower()
        headers[key] = (
            f"{headers[key]}, {value.decode('latin-1')}"
            if key in headers
            else (value.decode("latin-1"))
        )
    if "transfer-encoding" in headers and "content-length" in headers:
        # Whoever forwards requests may believe the other one.
        raise RequestError("expected Content-Length or Transfer-Encoding, got both")
    return HttpRequest(
        method=scope["method"],
        path=scope["raw_path"].decode("latin-1"),
        query=scope["query_string"].decode("latin-1"),
        headers=headers,
    )


def _with_body(head: HttpRequest, body: bytes) -> HttpRequest:
    return HttpRequest(head.method, head.path, head.query, head.headers, body)


async def _send(send: Send, answer: HttpAnswer, *, close: bool, more: bool = False) -> None:
    headers = [(name.lower(), value) for name, value in answer.headers]
    named = {name for name, _ in headers}
    if answer.kind and "content-type" not in named:
        headers.append(("content-type", answer.kind))
    if answer.status not in {204, 304} and "content-length" not in named:
        headers.append(("content-length", str(len(answer.body))))
    if close:
        headers.append(("connection", "close"))
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(n.encode("latin-1"), v.encode("latin-1")) for n, v in headers],
        }
    )
    await send({"type": "http.response.body", "body": answer.body, "more_body": more})
