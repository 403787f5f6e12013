"""The client for asyncio."""

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from sharded_infer.client.call_settings import PREDICT_METHOD, CallSettings
from sharded_infer.client.inputs import Inputs
from sharded_infer.client.prediction import Prediction, predict_error, read_prediction
from sharded_infer.client.request_message import request_message
from sharded_infer.v1 import predictor_pb2


class AsyncClient:
    """Calls a server from one event loop; its tasks should share one client and its connection."""

    def __init__(self, target: str, settings: CallSettings | None = None) -> None:
        """Prepare a connection, in the event loop; it opens at the first call.

        Args:
            target: `host:port`, or any other gRPC name, such as `dns:///ranker:8001`.

        Raises:
            ValueError: the settings are inconsistent.
        """
        self._settings = settings or CallSettings()
        options = self._settings.channel_options()
        credentials = self._settings.credentials()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(target, options)
        else:
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        self._predict: Any = self._channel.unary_unary(
            PREDICT_METHOD,
            request_serializer=None,
            response_deserializer=predictor_pb2.PredictResponse.FromString,
        )

    async def predict(
        self,
        model: str,
        *,
        user: Inputs | Sequence[Inputs] | None = None,
        candidates: Inputs | Sequence[Inputs] | None = None,
        version: str | int = "",
        outputs: Iterable[str] = (),
        request_id: str = "",
        priority: int = 0,
        report_unknown_ids: bool = False,
        routing_key: str | int | None = None,
        timeout_seconds: float | None = None,
    ) -> Prediction:
        """Score candidates for a user. Arguments and errors are those of `Client.predict`."""
        message = request_message(
            model,
            user=user,
            candidates=candidates,
            version=version,
            outputs=outputs,
            request_id=request_id,
            priority=priority,
            report_unknown_ids=report_unknown_ids,
            routing_key=routing_key,
        )
        seconds = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            return read_prediction(await self._call(message, seconds))
        except grpc.RpcError as error:
            raise predict_error(error) from error

    async def close(self) -> None:
        """Close the connection; calls in progress are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(self, message: bytes, seconds: float) -> Any:
        async def start(left: float) -> Any:
            return await self._predict(message, timeout=left, metadata=self._settings.metadata)

        after = self._settings.hedge_after_seconds
        if after is None:
            return await start(seconds)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        calls = {asyncio.ensure_future(start(seconds))}
        try:
            done, waiting = await asyncio.wait(calls, timeout=after)
            if not done:
                calls.add(asyncio.ensure_future(start(max(0.0, begun + seconds - loop.time()))))
                done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                if waiting and all(call.exception() for call in done):
                    done, waiting = await asyncio.wait(waiting)
            # Both may have ended meanwhile, one of them with an error.
            return min(done, key=lambda call: call.exception() is not None).result()
        finally:
            for call in calls:
                call.cancel()
