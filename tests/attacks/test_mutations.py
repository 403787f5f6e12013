"""Messages changed at random, sent to a real server: it refuses them in words, or answers rightly.

SHARDED_INFER_SOAK=1 makes it 60,000 for each kind of message and transport; `-s` shows the counts.
"""

import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.grpc_api.handlers import INFER_METHOD, PREDICT_METHOD
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.wire_tensors import DTYPES
from sharded_infer.client.request_message import request_message
from sharded_infer.engines.executor import run_batch
from sharded_infer.v1 import predictor_pb2
from tests.attacks.mutations import mutated
from tests.support.server_processes import resident_bytes
from tests.support.servers import (
    MODEL,
    Ranker,
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
)

COUNT = 60_000 if os.environ.get("SHARDED_INFER_SOAK") == "1" else 1_000
IN_FLIGHT = 24
GOOD_EVERY = 100
MAX_BATCH = 64
MOST_GROWTH_BYTES = 64 << 20
SECONDS = 60.0
# What a client's own mistake is answered with; a deadline may be in the message.
ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


@dataclass(frozen=True, slots=True)
class Form:
    """One kind of predict call.

    Attributes:
        method: its path.
        wire: its form.
        kind: makes an empty request.
        good: makes a good message of so many samples.
        scores: request id and scores by output of a response's bytes.
    """

    method: str
    wire: MessageFormat
    kind: Callable[[], Any]
    good: Callable[[int], bytes]
    scores: Callable[[bytes], tuple[str, dict[str, np.ndarray]]]


def infer_good(batch: int) -> bytes:
    request = infer_request(good_inputs(batch, batch), request_id=f"r{batch}")
    return bytes(request.SerializeToString())


def infer_scores(data: bytes) -> tuple[str, dict[str, np.ndarray]]:
    response = service_pb2.ModelInferResponse.FromString(data)
    return response.id, {
        output.name: np.frombuffer(raw, DTYPES[output.datatype]).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def predict_good(batch: int) -> bytes:
    generator = np.random.default_rng(batch)
    return request_message(
        MODEL,
        user={"user": [batch % 50], "brand": [1, 2]},
        candidates={
            "dense": generator.standard_normal((batch, 4), dtype=np.float32),
            "item": generator.integers(0, 97, batch),
            "history": [[1] * (row % 3) for row in range(batch)],
            "category": generator.integers(0, 13, (batch, 2)),
        },
        request_id=f"r{batch}",
    )


def predict_scores(data: bytes) -> tuple[str, dict[str, np.ndarray]]:
    response = predictor_pb2.PredictResponse.FromString(data)
    return response.request_id, {
        output.name: np.array(output.values, np.float32).reshape(-1, output.width or 1)
        for output in response.outputs
    }


FORMS = {
    "infer": Form(
        INFER_METHOD, MessageFormat.INFER, service_pb2.ModelInferRequest, infer_good, infer_scores
    ),
    "predict": Form(
        PREDICT_METHOD,
        MessageFormat.PREDICT,
        predictor_pb2.PredictRequest,
        predict_good,
        predict_scores,
    ),
}


class Checker:
    """Compares answers with what the model gives here."""

    def __init__(self, ranker: Ranker, form: Form) -> None:
        self._ranker = ranker
        self._form = form
        self._reader = PortableReader(ranker.model.spec, max_batch=MAX_BATCH)
        self.codes: Counter[str] = Counter()

    def check(self, message: bytes, call: Any) -> None:
        code = call.code()
        self.codes[code.name] += 1
        assert code in ALLOWED, (code, call.details(), message)
        if code is not grpc.StatusCode.OK:
            assert call.details(), message
            return
        request_id, scores = self._form.scores(call.result())
        request = self._form.kind()
        request.MergeFromString(message)
        sent_id = request.id if self._form.wire is MessageFormat.INFER else request.request_id
        assert request_id == sent_id, "the answer is another request's"
        model = self._ranker.model
        (execution,) = run_batch(model, [self._reader.read_message(message, form=self._form.wire)])
        for name, wanted in zip(model.spec.tower.outputs, execution.scores, strict=True):
            if name in scores:
                got = scores[name].reshape(wanted.shape)
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5, err_msg=str(message))


@pytest.mark.timeout(3600 if COUNT > 10_000 else 300)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_mutated_messages_are_refused_in_words_or_answered_rightly(
    tmp_path: Path, form: Form
) -> None:
    ranker = publish_ranker(tmp_path / "repository")
    options = ("--max-batch", MAX_BATCH)
    random = Random(form.wire)
    goods = [form.good(batch) for batch in (1, 2, 3, 7)]
    checker = Checker(ranker, form)
    waiting: deque[tuple[bytes, Any]] = deque()
    with (
        running_server(ranker.repository, tmp_path / "log", *options) as server,
        grpc.insecure_channel(server.grpc_url) as channel,
    ):
        ask: Any = channel.unary_unary(form.method, None, None)
        for good in goods:
            checker.check(good, ask.future(good, timeout=SECONDS))
        before = resident_bytes(server.process.pid)
        for number in range(COUNT):
            good = random.choice(goods)
            message = good
            if number % GOOD_EVERY:
                message = mutated(good, random.choice(goods), form.kind, random)
            waiting.append((message, ask.future(message, timeout=SECONDS)))
            if len(waiting) == IN_FLIGHT:
                checker.check(*waiting.popleft())
        while waiting:
            checker.check(*waiting.popleft())
        assert server.process.poll() is None
        assert resident_bytes(server.process.pid) < before + MOST_GROWTH_BYTES
        log = (tmp_path / "log").read_text()
        assert "internal error" not in log and "Traceback" not in log, log
    print(f"\n{form.wire}: {COUNT} messages, {dict(checker.codes)}")  # noqa: T201
    # Otherwise the test would show nothing.
    assert checker.codes["OK"] > COUNT // GOOD_EVERY and len(checker.codes) > 2
