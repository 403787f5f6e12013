"""The client for threads."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import grpc

from sharded_infer.client.call_settings import PREDICT_METHOD, CallSettings
from sharded_infer.client.hedging import first_answer
from sharded_infer.client.inputs import Inputs
from sharded_infer.client.prediction import Prediction, predict_error, read_prediction
from sharded_infer.client.request_message import request_message
from sharded_infer.v1 import predictor_pb2


class Client:
    """Calls a server; threads should share one client and its connection."""

    def __init__(self, target: str, settings: CallSettings | None = None) -> None:
        """Prepare a connection, which opens at the first call.

        Args:
            target: `host:port`, or any other gRPC name, such as `dns:///ranker:8001`.

        Raises:
            ValueError: the settings are inconsistent.
        """
        self._settings = settings or CallSettings()
        options = self._settings.channel_options()
        credentials = self._settings.credentials()
        if credentials is None:
            self._channel = grpc.insecure_channel(target, options)
        else:
            self._channel = grpc.secure_channel(target, credentials, options)
        self._predict: Any = self._channel.unary_unary(
            PREDICT_METHOD,
            request_serializer=None,
            response_deserializer=predictor_pb2.PredictResponse.FromString,
        )

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
        seconds = self._settings.timeout_seconds if timeout_seconds is None else timeout_seconds
        try:
            return read_prediction(self._call(message, seconds))
        except grpc.RpcError as error:
            raise predict_error(error) from error

    def close(self) -> None:
        """Close the connection; calls in progress are cancelled."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(self, message: bytes, seconds: float) -> Any:
        metadata, after = self._settings.metadata, self._settings.hedge_after_seconds
        if after is None:
            return self._predict(message, timeout=seconds, metadata=metadata)

        def start(left: float) -> Any:
            return self._predict.future(message, timeout=left, metadata=metadata)

        return first_answer(start, after_seconds=after, timeout_seconds=seconds)
