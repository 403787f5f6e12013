import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from sharded_infer.v1 import predictor_pb2, predictor_pb2_grpc

Answer = Callable[[int, grpc.ServicerContext], None]


@dataclass
class ScriptedServer(predictor_pb2_grpc.PredictorServicer):
    """Counts its calls.

    Attributes:
        answer: gets the number of each call, from 1, and its context; unless aborted, the call is
            answered with that number.
    """

    answer: Answer
    target: str = ""
    calls: int = 0
    metadata: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def Predict(  # noqa: N802 - the protocol's name
        self, request: predictor_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predictor_pb2.PredictResponse:
        with self.lock:
            self.calls += 1
            number = self.calls
            self.metadata.append({key: str(value) for key, value in context.invocation_metadata()})
        self.answer(number, context)
        return predictor_pb2.PredictResponse(
            model=request.model,
            version=number,
            request_id=request.request_id,
            outputs=[
                predictor_pb2.Output(name="score", values=[0.25, 0.5]),
                predictor_pb2.Output(name="classes", values=[1, 2, 3, 4], width=2),
            ],
            timing=predictor_pb2.Timing(queue_seconds=0.5),
        )


@contextmanager
def scripted_server(answer: Answer = lambda number, context: None) -> Iterator[ScriptedServer]:
    server = grpc.server(ThreadPoolExecutor(8))
    servicer = ScriptedServer(answer)
    predictor_pb2_grpc.add_PredictorServicer_to_server(servicer, server)
    servicer.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()
