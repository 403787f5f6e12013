"""NVIDIA's clients of the Open Inference Protocol behind one face, so that one suite asks them all.

The clients have the same methods, apart from how they are awaited, how they stream and what their
errors' codes look like. What describes something comes as a dict, as the JSON form has it.
"""

import asyncio
import queue
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tritonclient.grpc as sync_grpc
import tritonclient.grpc.aio as aio_grpc
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

Arrays = Mapping[str, NDArray[np.generic]]
# What came for one request of a stream.
Answer = tuple[Any, InferenceServerException | None]
_DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
_PATIENT_SECONDS = 30.0


class Client(Protocol):
    """One of NVIDIA's clients, connected to a server.

    Attributes:
        streams: whether its transport has streams.
    """

    streams: bool

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method of the client's."""
        ...

    def describe(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Calls a method whose answer describes something."""
        ...

    def input(self, name: str, array: NDArray[np.generic]) -> Any:
        """An input with its contents."""
        ...

    def output(self, name: str) -> Any:
        """An output to ask for."""
        ...

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> list[Answer]:
        """Sends requests on one stream, and returns what came."""
        ...

    def code(self, error: InferenceServerException) -> str:
        """The name of the gRPC status code that an error stands for."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class _GrpcClient:
    """What the two clients over gRPC have in common."""

    streams = True

    def input(self, name: str, array: NDArray[np.generic]) -> Any:
        tensor = sync_grpc.InferInput(name, array.shape, _DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array)
        return tensor

    def output(self, name: str) -> Any:
        return sync_grpc.InferRequestedOutput(name)

    def code(self, error: InferenceServerException) -> str:
        return str(error.status()).removeprefix("StatusCode.")


class SyncClient(_GrpcClient):
    """tritonclient.grpc."""

    def __init__(self, url: str) -> None:
        self._client = sync_grpc.InferenceServerClient(url)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._client, method)(*arguments, **named)

    def describe(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self.call(method, *arguments, **named, as_json=True)

    def stream(self, requests: Iterable[Mapping[str, Any]]) -> list[Answer]:
        came: queue.Queue[Answer] = queue.Queue()
        self._client.start_stream(lambda result, error: came.put((result, error)))
        try:
            sent = 0
            for request in requests:
                self._client.async_stream_infer(**request)
                sent += 1
            return [came.get(timeout=_PATIENT_SECONDS) for _ in range(sent)]
        finally:
            self._client.stop_stream()

    def close(self) -> None:
        self._client.close()


class AioClient(_GrpcClient):
    """tritonclient.grpc.aio, on a loop of its own."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._client = self._runner.run(_made(url))

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._runner.run(getattr(self._client, method)(*arguments, **named))

    def describe(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self.call(method, *arguments, **named, as_json=True)

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


async def _made(url: str) -> Any:
    return aio_grpc.InferenceServerClient(url)


def make_client(kind: str, url: str) -> Client:
    """A client by the name that the suite's parameters have for it."""
    kinds: dict[str, type[SyncClient] | type[AioClient]] = {"grpc": SyncClient, "aio": AioClient}
    return kinds[kind](url)


def infer(
    client: Client,
    model: str,
    inputs: Arrays,
    *,
    outputs: Sequence[str] = (),
    **named: Any,
) -> Any:
    """Asks for scores."""
    tensors = [client.input(name, array) for name, array in inputs.items()]
    wanted = [client.output(name) for name in outputs] or None
    return client.call("infer", model, tensors, outputs=wanted, **named)
