"""The client for threads."""

from collections.abc import Iterable, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

import grpc

from sharded_infer.client.call_settings import CallSettings, predictor_methods
from sharded_infer.client.hedging import first_answer
from sharded_infer.client.inputs import Inputs
from sharded_infer.client.prediction import Prediction, predict_error, read_prediction
from sharded_infer.client.replicas import Replicas, targets_of
from sharded_infer.client.request_message import request_message


class Client:
    """Calls a server; threads should share one client and its connection."""

    def __init__(self, target: str | Sequence[str], settings: CallSettings | None = None) -> None:
        """Prepare a connection to each target, which opens at the first call.

        Args:
            target: `host:port`, or any other gRPC name, such as `dns:///ranker:8001`; or several,
                of replicas of a server: calls with equal routing keys go to the same one of those
                that are ready, others to each in turn.

        Raises:
            ValueError: the settings are inconsistent, or a target is named twice.
        """
        self._settings = settings or CallSettings()
        targets = targets_of(target)
        self._failed: set[int] = set()
        self._replicas = Replicas(targets, lambda at: at not in self._failed)
        self._channels = self._settings.channels(grpc, targets)
        if len(targets) > 1:
            for at, channel in enumerate(self._channels):
                channel.subscribe(partial(self._changed, at))
        self._predict, self._prepare = predictor_methods(self._channels)

    def predict(
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
        """Score candidates for a user.

        Args:
            user: inputs that all candidates share: a mapping of arrays by feature or dense input, a
                DataFrame, an object shaped like a KeyedJaggedTensor, or several of these. Forms of
                an array: `sharded_infer.client.inputs`.
            candidates: inputs of each candidate, in the same forms.
            version: a version's number or a label; empty: the server's default.
            outputs: names of the outputs to return; none: all.
            request_id: returned with the response, and in the server's logs.
            priority: 1 (first) to 10; 0: the default.
            report_unknown_ids: request `Prediction.unknown_ids`.
            routing_key: a text or an int64; equal keys get the same version among those of weighted
                labels. None: random.
            timeout_seconds: the call's deadline, retries and hedging included; None: the client's.

        Raises:
            RequestError: an input cannot be sent; names it.
            PredictError: the server returned an error, or could not be reached.
        """
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
        return read_prediction(self._answered(self._predict, message, routing_key, timeout_seconds))

    def prepare(
        self,
        model: str,
        *,
        user: Inputs | Sequence[Inputs],
        version: str | int = "",
        routing_key: str | int | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Compute and keep a user's state, before the candidates are known.

        The next `predict` with the same user, or one whose histories begin alike, computes the
        rest. Give both calls the same `routing_key`, to reach the replica that keeps it.

        Args:
            user, version, routing_key, timeout_seconds: as of `predict`.

        Raises:
            RequestError: an input cannot be sent; names it.
            PredictError: the server returned an error, such as UNIMPLEMENTED if it keeps no
                states, or could not be reached.
        """
        message = request_message(model, user=user, version=version, routing_key=routing_key)
        self._answered(self._prepare, message, routing_key, timeout_seconds)

    def close(self) -> None:
        """Close the connection; calls in progress are cancelled."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _changed(self, at: int, state: grpc.ChannelConnectivity) -> None:
        has_failed = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        (self._failed.add if has_failed else self._failed.discard)(at)

    def _answered(
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
                return self._call(methods[at], message, deadline - monotonic())
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise predict_error(error) from error
        try:
            return self._call(methods[last], message, deadline - monotonic())
        except grpc.RpcError as error:
            raise predict_error(error) from error

    def _call(self, method: Any, message: bytes, seconds: float) -> Any:
        metadata, after = self._settings.metadata, self._settings.hedge_after_seconds
        if after is None:
            return method(message, timeout=seconds, metadata=metadata)

        def start(left: float) -> Any:
            return method.future(message, timeout=left, metadata=metadata)

        return first_answer(start, after_seconds=after, timeout_seconds=seconds)
