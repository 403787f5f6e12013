"""The protocol over HTTP in one process: predictions, operations and descriptions."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from serving.grpc_api.handlers import MOST_CONTROL_BYTES
from serving.http_api.application import TakeUsual
from serving.http_api.compression import inflate
from serving.http_api.exchange import HttpAnswer, HttpCall, status_answer
from serving.http_api.operations.model_api import ModelApi
from serving.http_api.predictions import Predictions
from serving.http_api.routes import INFER, PROBES, Route
from serving.status import DRAINING
from serving.transport.http2_server import Http2Server

# At most six loads and unloads wait (`serving/control/model_control.py`), so two threads stay free.
_THREADS = 8


class RestApi:
    """Answers the protocol's paths."""

    def __init__(self, operations: ModelApi, predictions: Predictions) -> None:
        self._operations = operations
        self._predictions = predictions
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="http-call")
        self._is_stopped = False

    def take(self, call: HttpCall, route: Route) -> None:
        """Implements `Api.take`."""
        if route.operation in INFER:
            self._predictions.take(call, route.names(call.request.path))
        elif route.operation in PROBES:
            # Handled immediately, even if all threads are busy.
            self._operate(call, route)
        elif self._is_stopped:
            call.reply(status_answer(DRAINING))
        else:
            self._threads.submit(self._operate, call, route)

    def attach(self, server: Http2Server, respond: Callable[[int, HttpAnswer], None]) -> TakeUsual:
        """Implements `Api.attach`."""
        self._predictions.attach(server, respond)
        return self._predictions.take_usual

    def run(self) -> None:
        """Implements `Api.run`."""
        self._predictions.run()

    def warm(self, run: Callable[[], None]) -> None:
        """Calls `run` once on each thread of the server that is to run batches."""
        self._predictions.warm(run)

    def drain(self) -> None:
        """Refuses further predict calls."""
        self._predictions.drain()

    def stop(self, seconds: float) -> None:
        """Returns when all predict calls are answered or `seconds` have passed."""
        self._predictions.wait(seconds)
        self._is_stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _operate(self, call: HttpCall, route: Route) -> None:
        try:
            request = call.request
            encoding = request.headers.get("content-encoding", "")
            plain = replace(request, body=inflate(request.body, encoding, MOST_CONTROL_BYTES))
            names = route.names(request.path)
            answer = self._operations.answer(
                route.operation, names, plain, lambda: not call.is_lost
            )
        except Exception as error:
            call.fail(error)
        else:
            call.reply(answer)
