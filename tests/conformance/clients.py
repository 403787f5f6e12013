"""NVIDIA's clients of the Open Inference Protocol behind one face, for one suite."""

import asyncio
import queue
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest
import tritonclient.grpc as sync_grpc
import tritonclient.grpc.aio as aio_grpc
import tritonclient.http as sync_http
from numpy.typing import NDArray
from tritonclient._plugin import InferenceServerClientPlugin
from tritonclient.utils import InferenceServerException

from tests.support.servers import DATATYPES, RunningServer

Arrays = Mapping[str, NDArray[np.generic]]
# What came for one request of a stream.
Answer = tuple[Any, InferenceServerException | None]
_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Protection:
    """Credentials for a protected server: its authority's certificate and a token of all scopes."""

    authority: Path
    token: str


@dataclass(slots=True)
class ConformingServer(RunningServer):
    """A server that the suite asks, and what its clients need."""

    protection: Protection | None = None

    def page(self) -> str:
        request, trust = Request(self.metrics_url), None  # noqa: S310 - our own server
        if self.protection is not None:
            request.add_header("authorization", f"Bearer {self.protection.token}")
            trust = ssl.create_default_context(cafile=self.protection.authority)
        with urlopen(request, timeout=_SECONDS, context=trust) as page:  # noqa: S310
            return str(page.read().decode())


class _Token(InferenceServerClientPlugin):
    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: Any) -> None:
        request.headers["authorization"] = f"Bearer {self._token}"


class _GrpcClient:
    """What the two clients over gRPC have in common."""

    streams = True
    explains = True

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError

    def describe(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method whose answer describes something."""
        return self.call(method, *arguments, **named, as_json=True)

    def response(self, result: Any) -> dict[str, Any]:
        response: dict[str, Any] = result.get_response(as_json=True)
        return response

    def input(self, name: str, array: NDArray[np.generic]) -> Any:
        tensor = sync_grpc.InferInput(name, array.shape, DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name: str) -> Any:
        return sync_grpc.InferRequestedOutput(name)

    def code(self, error: InferenceServerException) -> str:
        return str(error.status()).removeprefix("StatusCode.")


class SyncClient(_GrpcClient):
    def __init__(self, url: str, protection: Protection | None) -> None:
        self._client = sync_grpc.InferenceServerClient(url, **_tls(protection))
        if protection is not None:
            self._client.register_plugin(_Token(protection.token))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._client, method)(*arguments, **named)

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> list[Answer]:
        came: queue.Queue[Answer] = queue.Queue()
        self._client.start_stream(lambda result, error: came.put((result, error)))
        try:
            sent = 0
            for request in requests:
                self._client.async_stream_infer(**request)
                sent += 1
            return [came.get(timeout=_SECONDS) for _ in range(sent)]
        finally:
            self._client.stop_stream()

    def close(self) -> None:
        self._client.close()


class AioClient(_GrpcClient):
    """tritonclient.grpc.aio, on a loop of its own."""

    def __init__(self, url: str, protection: Protection | None) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_made(url, protection))
        if protection is not None:
            self._client.register_plugin(_Token(protection.token))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._runner.run(getattr(self._client, method)(*arguments, **named))

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> list[Answer]:
        async def sent() -> AsyncIterator[dict[str, Any]]:
            for request in requests:
                yield dict(request)

        async def answers() -> list[Answer]:
            return [answer async for answer in self._client.stream_infer(sent())]

        return self._runner.run(answers())

    def close(self) -> None:
        self._runner.run(self._client.close())
        self._runner.close()


# As `serving/status.py` has it.
_CODES = {
    "400": "INVALID_ARGUMENT",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "NOT_FOUND",
    "409": "ALREADY_EXISTS",
    "429": "RESOURCE_EXHAUSTED",
    "500": "INTERNAL",
    "501": "UNIMPLEMENTED",
    "503": "UNAVAILABLE",
    "504": "DEADLINE_EXCEEDED",
}


class HttpClient:
    """tritonclient.http; what it describes is put into the form that the others have."""

    streams = False
    explains = False

    def __init__(self, url: str, protection: Protection | None) -> None:
        options: dict[str, Any] = {}
        if protection is not None:
            options = {"ssl": True, "ssl_options": {"ca_certs": str(protection.authority)}}
        self._client = sync_http.InferenceServerClient(url, network_timeout=_SECONDS, **options)
        if protection is not None:
            self._client.register_plugin(_Token(protection.token))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._client, method)(*arguments, **named)

    def describe(self, method: str, *arguments: Any, **named: Any) -> Any:
        found = self.call(method, *arguments, **named)
        if method == "get_model_repository_index":
            return {"models": found} if found else {}
        if method.endswith("shared_memory_status"):
            return {"regions": {region["name"]: region for region in found}}
        if method == "get_trace_settings":
            lists = {name: v if isinstance(v, list) else [v] for name, v in found.items()}
            return {"settings": {name: {"value": value} for name, value in lists.items()}}
        return found

    def input(self, name: str, array: NDArray[np.generic]) -> Any:
        tensor = sync_http.InferInput(name, list(array.shape), DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name: str) -> Any:
        return sync_http.InferRequestedOutput(name)

    def response(self, result: Any) -> dict[str, Any]:
        response: dict[str, Any] = result.get_response()
        return response

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> list[Answer]:
        raise NotImplementedError("HTTP has no streams")

    def code(self, error: InferenceServerException) -> str:
        return _CODES[str(error.status())]

    def close(self) -> None:
        self._client.close()


Client = SyncClient | AioClient | HttpClient


async def _made(url: str, protection: Protection | None) -> Any:
    return aio_grpc.InferenceServerClient(url, **_tls(protection))


def _tls(protection: Protection | None) -> dict[str, Any]:
    if protection is None:
        return {}
    return {"ssl": True, "root_certificates": str(protection.authority)}


def make_client(kind: str, server: RunningServer) -> Client:
    protection = server.protection if isinstance(server, ConformingServer) else None
    if kind == "http":
        return HttpClient(urlsplit(server.metrics_url).netloc, protection)
    kinds: dict[str, type[SyncClient] | type[AioClient]] = {"grpc": SyncClient, "aio": AioClient}
    return kinds[kind](server.grpc_url, protection)


def infer(
    client: Client, model: str, inputs: Arrays, *, outputs: Sequence[str] = (), **named: Any
) -> Any:
    tensors = [client.input(name, array) for name, array in inputs.items()]
    wanted = [client.output(name) for name in outputs] or None
    return client.call("infer", model, tensors, outputs=wanted, **named)


def refused(code: str, words: str, client: Client, call: Callable[[], object]) -> None:
    """A call ends with a code and an error that has the words."""
    with pytest.raises(InferenceServerException) as error:
        call()
    assert client.code(error.value) == code, error.value
    assert words in error.value.message()
