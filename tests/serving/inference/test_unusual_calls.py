from types import SimpleNamespace
from typing import Any

import numpy as np

from serving.abi.calls import Form, ReadCall, Sender
from serving.inference.predict_calls import PredictCalls
from serving.protocol.input_limits import InputLimits
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.scheduler import Scheduler
from serving.scheduler.version_queue import VersionQueue
from tests.support.requests_by_chance import MAX_BATCH, SPEC, serialized


def test_inputs_of_a_rewritten_message_were_counted_as_they_came() -> None:
    scheduler = Scheduler()
    calls = PredictCalls(scheduler)
    queue = VersionQueue(BatchingPolicy(BatchingMode.BATCHED, max_delay=0.0), {1: 1e-9})
    scheduler.add_queue(queue)
    reader = InputReader(SPEC, max_batch=MAX_BATCH, limits=InputLimits(max_inputs=3))
    model = SimpleNamespace(name=SPEC.name, version=1, spec=SPEC)
    version: Any = SimpleNamespace(reader=reader, queue=queue, model=model)
    calls.routes.add(version)
    dense = {"context": np.ones((2, 3), np.float32), "bid": np.ones((2, 1), np.float32)}
    item = {"item": np.array([1, 2]), "item.lengths": np.array([1, 1])}
    message = serialized({**dense, **item})
    outcomes = []
    for is_rewritten in (False, True, False):
        call = ReadCall(
            sender=Sender.GRPC,
            form=Form.INFER,
            deadline=np.inf,
            outputs=bytes(len(SPEC.tower.outputs)),
            id=b"",
            label=b"",
            message=message,
            message_bytes=len(message),
            is_rewritten=is_rewritten,
        )
        with calls.routes.reading(version) as call.route:
            outcomes.append(calls.take_read(call, 0.0))
    assert outcomes == [(False, None), (True, None), (False, None)]
