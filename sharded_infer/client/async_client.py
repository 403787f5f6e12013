"""The client for asyncio."""

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

import grpc

from sharded_infer.client.call_settings import CallSettings, predictor_methods
from sharded_infer.client.inputs import Inputs
from sharded_infer.client.prediction import Prediction, predict_error, read_prediction
from sharded_infer.client.replicas import Replicas, targets_of
from sharded_infer.client.request_message import request_message


class AsyncClient:
    """Calls a server from one event loop; its tasks should share one client and its connection."""

    def __init__(self, target: str | Sequence[str], settings: CallSettings | None = None) -> None:
        """Prepare a connection to each target, in the event loop; it opens at the first call.

        Args:
            target: `host:port`, or any other gRPC name, such as `dns:///ranker:8001`; or several,
                of replicas of a server: calls with equal routing keys go to the same one of those
                that are ready, others to each in turn.

        Raises:
            ValueError: the settings are inconsistent, or a target is named twice.
        """
        self._settings = settings or CallSettings()
        targets = targets_of(target)
        self._replicas = Replicas(targets, self._is_ready)
        self._channels = self._settings.channels(grpc.aio, targets)
        self._predict, self._prepare = predictor_methods(self._channels)

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
        return read_prediction(
            await self._answered(self._predict, message, routing_key, timeout_seconds)
        )

    async def prepare(
        self,
        model: str,
        *,
        user: Inputs | Sequence[Inputs],
        version: str | int = "",
        routing_key: str | int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Compute and keep a user's state. Arguments and errors are those of `Client.prepare`."""
        message = request_message(model, user=user, version=version, routing_key=routing_key)
        await self._answered(self._prepare, message, routing_key, timeout_seconds)

    async def close(self) -> None:
        """Close the connection; calls in progress are cancelled."""
        for channel in self._channels:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _is_ready(self, at: int) -> bool:
        failed = grpc.ChannelConnectivity.TRANSIENT_FAILURE
        return self._channels[at].get_state(try_to_connect=True) is not failed

    async def _answered(
        self,
        methods: Sequence[Any],
        message: bytes,
        routing_key: str | int | None,
        timeout_seconds: float | None,
    ) -> Any:
        """The answer of the first replica that can be reached."""
        seconds = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        deadline = monotonic() + seconds
        *others, last = self._replicas.order(routing_key)
        for at in others:
            try:
                return await self._call(methods[at], message, deadline - monotonic())
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise predict_error(error) from error
        try:
            return await self._call(methods[last], message, deadline - monotonic())
        except grpc.RpcError as error:
            raise predict_error(error) from error

    async def _call(self, method: Any, message: bytes, seconds: float) -> Any:
        async def start(left: float) -> Any:
            return await method(message, timeout=left, metadata=self._settings.metadata)

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
