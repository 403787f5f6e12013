"""Predict calls as the client of a release sends them. Release 0.1.0 ran this file too."""

from concurrent import futures
from contextlib import suppress
from typing import Any

import grpc
import numpy as np

from sharded_infer.client import Bags, Client, PredictError
from tests.compatibility.corpus import Arrays, Corpus

METHOD = "/sharded_infer.v1.Predictor/Predict"


def keep_messages(corpus: Corpus) -> None:
    """Stores the message of each model's request."""
    recorder = _Recorder()
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=[recorder])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    (corpus.folder / "messages").mkdir()
    with Client(f"127.0.0.1:{port}") as client:
        for model in dict.fromkeys(model for model, _ in corpus.versions()):
            with suppress(PredictError):
                client.predict(model, candidates=_inputs(corpus.request(model)))
            corpus.message_path(model).write_bytes(recorder.messages.pop())
    server.stop(None).wait()


def _inputs(request: Arrays) -> dict[str, Any]:
    """A request as the client takes it."""
    names = [name for name in request if not name.endswith((".lengths", ".weights"))]
    return {
        name: Bags(request[name], request[f"{name}.lengths"], request.get(f"{name}.weights"))
        if f"{name}.lengths" in request
        else np.asarray(request[name])
        for name in names
    }


class _Recorder(grpc.GenericRpcHandler):
    """Keeps the bytes of each call, and answers that there is no such method."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._record)

    def _record(self, message: bytes, context: Any) -> bytes:
        self.messages.append(message)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "kept")
        return b""
