"""Calls that compiled code reads, compared with those that Python reads."""

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from serving.abi import calls as abi
from serving.abi.calls import Sender
from serving.errors import DeadlineError
from serving.inference.data_plane import DataPlane
from serving.inference.predict_calls import PredictCalls
from serving.inference.request_reports import RequestReports
from serving.inference.shadows.shadow_request import ShadowRequest
from serving.inference.shadows.shadows import Shadows
from serving.metrics.families.model_families import EMPTY_BAGS
from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from serving.observability.trace_settings import TraceSampling
from serving.observability.tracer import Tracer
from serving.protocol.message_format import MessageFormat
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_request import SentMessage
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.batching import BatchingMode, BatchingPolicy
from serving.scheduler.scheduler import QueueLimits, Scheduler
from serving.scheduler.version_queue import VersionQueue
from serving.status import Status, StatusCode
from serving.versions.served_versions import ServedVersions
from sharded_infer.engines.executor import run_batch
from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.v1 import predictor_pb2
from tests.serving.inference.planes import Plane, add_shadow, plane_of, samples_of
from tests.support.batches import run_together
from tests.support.requests_by_chance import (
    MAX_BATCH,
    SPEC,
    check_same,
    inputs_by_chance,
    serialized,
)
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request, scores_of
from tests.support.wire import CANCELLED, INFER, PREDICT, Take, Wire, ask, wire_of

FEATURES = tuple(feature.name for feature in SPEC.features)


@dataclass
class Place:
    """A `DataPlane` over the ranker with a wire, and another one whose calls Python reads."""

    own: Plane
    others: Plane
    wire: Wire = field(default_factory=Wire)

    @property
    def store(self) -> ServedVersions:
        return self.own.store

    @property
    def plane(self) -> DataPlane:
        return self.own.plane

    @property
    def other(self) -> DataPlane:
        return self.others.plane

    @property
    def take(self) -> Take:
        return self.plane.take

    def ask(self, *messages: bytes, method: int = INFER, **fields: Any) -> list[bytes | Status]:
        """Compiled code reads all, and they run as one batch if they fit in one."""
        numbers, left = self.wire.take(self.take, messages, method=method, **fields)
        assert left == []
        self.own.work_off()
        return [self.wire.answers.pop(number) for number in numbers]


def make_place(ranker: Ranker, **fields: Any) -> Place:
    return place_of(ranker.repository, MODEL, **fields)


def place_of(repository: Path, model: str, **fields: Any) -> Place:
    made = Place(plane_of(repository, model, **fields), plane_of(repository, model))
    made.wire.attach(made.plane.compiled)
    return made


@pytest.fixture(scope="module")
def place(ranker: Ranker) -> Place:
    return make_place(ranker)


def message(samples: int = 2, seed: int = 0, **fields: Any) -> bytes:
    request = infer_request(good_inputs(samples, seed), request_id=fields.pop("id", ""))
    for name in fields.pop("outputs", ()):
        request.outputs.add(name=name)
    for name, value in fields.items():
        request.parameters[name].int64_param = value
    return bytes(request.SerializeToString())


def spoilt_message(number: float) -> bytes:
    inputs = good_inputs(2)
    inputs["dense"][-1, -1] = number
    return bytes(infer_request(inputs).SerializeToString())


def predict_message(**fields: Any) -> bytes:
    request = predictor_pb2.PredictRequest(model=MODEL, **fields)
    inputs = good_inputs(3)
    request.candidates.dense.add(name="dense", values=inputs["dense"].ravel())
    for name in ("user", "item"):
        request.candidates.sparse.add(name=name, ids=inputs[name].ravel())
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(
    "sent",
    [
        message(),
        message(1, id="one"),
        message(200, id="x" * 300, priority=1),
        message(outputs=("labels",)),
        message(outputs=("labels", "score")),
        message(timeout=60_000_000),
    ],
)
def test_an_answer_has_the_bytes_of_other_calls(place: Place, sent: bytes) -> None:
    assert place.ask(sent) == [ask(place.other, sent)]


def test_a_predict_answer_differs_in_its_times_alone(place: Place) -> None:
    for sent in (predict_message(), predict_message(request_id="a-1", outputs=["score"])):
        (own,) = place.ask(sent, method=PREDICT)
        other = ask(place.other, sent, method=PredictMethod.PREDICT)
        assert isinstance(own, bytes) and isinstance(other, bytes) and len(own) == len(other)
        read = [predictor_pb2.PredictResponse.FromString(one) for one in (own, other)]
        for one in read:
            assert one.timing.ByteSize() == 20
            one.ClearField("timing")
        assert read[0] == read[1]


def test_calls_that_run_together_each_have_the_scores_of_the_merged_batch(place: Place) -> None:
    sent = [message(samples, seed) for seed, samples in enumerate((3, 1, 5, 2))]
    version = place.store.get(MODEL)
    inputs = [version.reader.read_message(one) for one in sent]
    wanted = run_together(version.model, inputs)
    answers = place.ask(*sent)
    for answer, result in zip(answers, wanted, strict=True):
        found = scores_of(infer_response(answer))
        for name, scores in zip(version.model.spec.tower.outputs, result.scores, strict=True):
            np.testing.assert_array_equal(found[name], scores)


@pytest.mark.parametrize("method", [INFER, PREDICT])
def test_calls_that_took_default_rows_alone_say_so(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    place = make_place(ranker)
    # Of three calls of three samples: the first one's last, and the last one's first.
    item, user = np.zeros((2, 9), np.bool_)
    item[[2, 6]] = user[6] = True
    sent = [predict_message()] * 3 if method == PREDICT else [message(3, at) for at in range(3)]
    wanted = place.ask(*sent, method=method)
    lose_rows(monkeypatch, item=item, user=user)
    answers = place.ask(*sent, method=method)
    for answer, before, tables in zip(answers, wanted, ("item", "", "item,user"), strict=True):
        assert isinstance(answer, bytes) and isinstance(before, bytes)
        if method == PREDICT:
            read = [predictor_pb2.PredictResponse.FromString(one) for one in (answer, before)]
            assert ",".join(read[0].default_tables) == tables
            assert read[0].outputs == read[1].outputs
        else:
            found = infer_response(answer)
            assert found.parameters["sharded_infer_default_tables"].string_param == tables
            found.ClearField("parameters")
            assert found == infer_response(before)
    totals = place.store.get(MODEL).metrics.totals()
    assert (totals.requests, totals.samples, totals.executions) == (6, 18, 2)
    assert place.plane.calls.in_progress == 0


def lose_rows(monkeypatch: pytest.MonkeyPatch, **lost: Any) -> None:
    """Let batches take default rows of these tables for the samples that are marked."""

    def run(model: Any, batch: ModelInput, *more: Any, may_default: bool) -> Any:
        ran = run_batch(model, batch, *more, may_default=may_default)
        work = ran.work._replace(defaults=lost)
        return replace(ran, work=work, default_tables=tuple(lost))

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", run)


def infer_response(answer: bytes | Status) -> Any:
    assert isinstance(answer, bytes), answer
    return service_pb2.ModelInferResponse.FromString(answer)


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        (message(), {"method": 0}),
        (message(), {"kind": CANCELLED}),
        (message(), {"encoding": 1}),
        (message()[:-1], {}),
        (b"", {}),
        (infer_request(good_inputs(2), model="other").SerializeToString(), {}),
        (message(outputs=("nothing",)), {}),
        (message(timeout=-5), {}),
        (message(label=3), {}),
        (message(), {"seconds_left": -1.0}),
        (message(300), {}),
        (message() + b"\x32\x00" * 17, {}),
        (spoilt_message(np.nan), {}),
        (spoilt_message(-np.inf), {}),
    ],
)
def test_what_is_unusual_or_refused_is_left(
    place: Place, sent: bytes, fields: dict[str, Any]
) -> None:
    assert place.wire.take(place.take, (sent,), **fields)[1] == [0]
    assert place.plane.calls.in_progress == 0 and place.plane.dispatcher.waiting == (0, 0)
    assert place.ask(message()) == [ask(place.other, message())]


def test_calls_go_to_what_names_mean_now(ranker: Ranker) -> None:
    place = make_place(ranker)
    asked = infer_request(good_inputs(2))
    asked.model_version = "canary"
    sent = asked.SerializeToString()
    assert place.wire.take(place.take, (sent,))[1] == [0]
    place.store.offer({MODEL: {"": 1, "1": 1, "canary": 1}})
    assert isinstance(place.ask(sent)[0], bytes)
    version = place.store.get(MODEL)
    numbers, _ = place.wire.take(place.take, (sent,))
    place.store.clear()
    assert place.wire.take(place.take, (sent,))[1] == [0]
    # A call that waits keeps its version.
    place.own.work_off()
    assert isinstance(place.wire.answers[numbers[0]], bytes)
    place.plane.compiled.routes.remove(version)
    assert len(place.plane.compiled.routes) == 0


def page(metrics: ServerMetrics) -> dict[tuple[str, str], float]:
    timed = ("seconds", "created", "process_", "python_", "cost_ratio", "available", "objective")
    return {
        (sample.name, str(sample.labels)): sample.value
        for sample in samples_of(metrics)
        if not any(word in sample.name for word in timed)
    }


def test_the_same_is_counted_as_of_other_calls(ranker: Ranker) -> None:
    place = make_place(ranker)
    sent = [message(samples, seed) for seed, samples in enumerate((3, 1, 200))]
    for one in sent:
        place.ask(one)
        ask(place.other, one)
    assert page(place.own.metrics) == page(place.others.metrics)
    version, other = place.store.get(MODEL).metrics, place.others.metrics.version(MODEL, 1)
    own, wanted = version.totals(), other.totals()
    assert (own.requests, own.samples, own.executions) == (3, 204, 3)
    assert [b.size for b in own.batches] == [b.size for b in wanted.batches]
    assert own.success.count == wanted.success.count and own.queue.count == wanted.queue.count
    place.ask(*sent[:2])
    assert (version.totals().requests, version.totals().executions) == (5, 4)


def test_a_cancelled_call_is_not_run(place: Place) -> None:
    numbers, _ = place.wire.take(place.take, (message(), message(3)))
    assert place.wire.gone(place.take, (numbers[0], numbers[0], numbers[1] + 1)) == [2]
    assert place.plane.dispatcher.waiting == (1, 3)
    place.own.work_off()
    assert [number in place.wire.answers for number in numbers] == [False, True]
    assert place.wire.gone(place.take, numbers[1:]) == [0]
    assert place.plane.calls.in_progress == 0


def test_a_call_whose_deadline_passes_is_refused_as_others_are(place: Place) -> None:
    number = place.wire.take(place.take, (message(),), seconds_left=0.05)[0][0]
    while number not in place.wire.answers:
        place.plane.dispatcher.expire()
    refused = place.wire.answers[number]
    assert isinstance(refused, Status) and refused.code is StatusCode.DEADLINE_EXCEEDED
    assert place.plane.calls.in_progress == 0
    assert isinstance(place.ask(message())[0], bytes)


def test_calls_whose_clients_have_gone_leave_the_queue_together(ranker: Ranker) -> None:
    place = make_place(ranker)
    numbers, _ = place.wire.take(place.take, [message()] * 3)
    assert place.wire.gone(place.take, [numbers[0], numbers[2], numbers[2] + 1]) == [2]
    assert place.plane.dispatcher.waiting == (1, 2) and place.plane.calls.in_progress == 1
    # Who is told twice, or of a call that has been answered, has nothing to do.
    assert place.wire.gone(place.take, [numbers[0]]) == [0]
    place.own.work_off()
    assert list(place.wire.answers) == [numbers[1]]
    assert place.wire.gone(place.take, numbers) == [0, 1, 2]
    assert place.own.total("requests_total", code="CANCELLED") == 2
    assert place.own.total("requests_refused_total", reason="cancelled") == 2
    assert place.plane.calls.in_progress == 0


def test_calls_that_would_be_too_late_are_refused_and_counted(ranker: Ranker) -> None:
    place = make_place(ranker)
    queue = place.store.get(MODEL).queue
    # Minutes a batch, so that a second call cannot be answered within a second.
    for at in range(100):
        for samples in (1, 2, 3, 4, 8):
            queue.costs.observe(samples, 600.0, 1e6 + at)
    place.wire.take(place.take, [message()])
    numbers, left = place.wire.take(place.take, [message()] * 2, seconds_left=1.0)
    assert left == []
    other = ask(place.plane, message(), time_remaining=1.0)
    assert isinstance(other, Status) and other.code is StatusCode.DEADLINE_EXCEEDED
    assert [place.wire.answers[number] for number in numbers] == [other, other]
    assert place.own.total("requests_refused_total", reason="deadline") == 3
    assert place.own.total("requests_total", code="DEADLINE_EXCEEDED") == 3
    assert place.plane.dispatcher.waiting[0] == 1 and place.plane.calls.in_progress == 1


def test_calls_run_beside_those_that_python_reads_in_one_batch(ranker: Ranker) -> None:
    place = make_place(ranker)
    unusual = [place.wire.submit(place.plane, message(2, 1))]
    numbers, _ = place.wire.take(place.take, (message(3, 2), message(1, 3)))
    unusual.append(place.wire.submit(place.plane, message(4, 4)))
    place.own.work_off()
    assert all(isinstance(place.wire.answers[number], bytes) for number in unusual)
    assert place.store.get(MODEL).metrics.totals().executions == 1
    for sent, number in zip((message(3, 2), message(1, 3)), numbers, strict=True):
        check_near(place, sent, place.wire.answers[number])


def check_near(place: Place, sent: bytes, answer: bytes | Status) -> None:
    own, alone = (scores_of(infer_response(a)) for a in (answer, ask(place.other, sent)))
    for name, scores in alone.items():
        np.testing.assert_allclose(own[name], scores, atol=1e-2)


def test_calls_that_share_different_features_are_answered(place: Place) -> None:
    shared = dict(good_inputs(3))
    first = next(n for n in shared if f"{n}.lengths" not in shared and shared[n].dtype == np.int64)
    shared[first] = shared[first][:1]
    sent = [message(3), bytes(infer_request(shared).SerializeToString())]
    for one, answer in zip(sent, place.ask(*sent), strict=True):
        check_near(place, one, answer)


def test_a_batch_that_fails_is_run_call_by_call(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = type(place.store.get(MODEL).model.engine)
    run = engine.run

    def fail(self: Any, batch: ModelInput, deadline: float, **_: Any) -> Any:
        if batch.batch_size != 3:
            raise RuntimeError("a bug")
        return run(self, batch, deadline)

    monkeypatch.setattr(engine, "run", fail)
    good, bad = place.ask(message(3), message(2))
    assert isinstance(good, bytes)
    assert isinstance(bad, Status) and bad.code is StatusCode.INTERNAL
    assert place.plane.calls.in_progress == 0
    sent = message(3), message(2)
    wire = wire_of(place.other)
    numbers = [wire.submit(place.other, one) for one in sent]
    place.others.work_off()
    assert sorted(isinstance(wire.answers.pop(n), bytes) for n in numbers) == [False, True]


def test_calls_whose_deadline_passes_in_a_lookup_are_refused_and_the_others_answered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = place.store.get(MODEL).model
    run, ran = type(model.engine).run, []

    def look_up_late(self: Any, batch: ModelInput, deadline: float, **_: Any) -> Any:
        ran.append(batch.batch_size)
        if deadline < math.inf:
            sleep(max(0.0, deadline - monotonic()))
            raise DeadlineError("shard host 1: no answer")
        return run(self, batch, deadline)

    monkeypatch.setattr(type(model.engine), "run", look_up_late)
    monkeypatch.setattr(model, "is_front", True)
    early = place.wire.take(place.take, (message(3),), seconds_left=2.0)[0]
    numbers = early + place.wire.take(place.take, (message(2), message(1)))[0]
    place.own.work_off()
    refused, *answered = (place.wire.answers[number] for number in numbers)
    assert isinstance(refused, Status) and refused.code is StatusCode.DEADLINE_EXCEEDED
    assert "shard host 1" in refused.message
    assert all(isinstance(answer, bytes) for answer in answered)
    assert ran == [6, 3] and place.plane.calls.in_progress == 0


@pytest.fixture
def tracer(request: pytest.FixtureRequest) -> Iterator[Tracer]:
    tracer = Tracer(TraceSampling(request.param), lambda _: True, period_seconds=3600.0)
    yield tracer
    tracer.stop()


@pytest.mark.parametrize("tracer", [0.25], indirect=True)
def test_chance_draws_as_many_as_the_ratio_says_and_each_is_traced(
    ranker: Ranker, tracer: Tracer
) -> None:
    place = make_place(ranker, reports=RequestReports(tracer, 0.0))
    drawn = 0
    for _ in range(20):
        _, left = place.wire.take(place.take, (message(1),) * 100, headers=b"\0" * 8)
        assert left == []
        drawn += len(place.plane._execution.traces)
        place.own.work_off()
        assert not place.plane._execution.traces
    # Of 2,000 draws: more than seven standard deviations.
    assert 360 < drawn < 640
    traces = [tracer.begin((), drawn=True) for _ in range(100)]
    assert all(one is not None and one.trace_id & (2**64 - 1) < tracer.bound for one in traces)
    assert len({one.trace_id for one in traces if one is not None}) == 100


@pytest.mark.parametrize("tracer", [0.0], indirect=True)
def test_calls_are_traced_where_their_clients_decide_so(ranker: Ranker, tracer: Tracer) -> None:
    place = make_place(ranker, reports=RequestReports(tracer, 0.0))
    header = (11).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"traceparentx"
    other = (3).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"foox"
    begun: list[Any] = []
    place.plane._reports.begin = lambda *_, **fields: begun.append(fields)
    assert place.wire.take(place.take, (message(),), headers=other + header)[1] == []
    assert place.wire.take(place.take, (message(),), headers=other)[1] == []
    place.own.work_off()
    assert begun == [{"drawn": False}] and len(place.wire.answers) == 2


class Beside:
    """A place whose version has a shadow, and the shadow's requests."""

    def __init__(self, ranker: Ranker, share: float = 1.0) -> None:
        self.shadows = Shadows("canary", share, Random(3).random, lambda: self.now)
        self.now = 0.0
        self.place = make_place(ranker, shadows=self.shadows)
        add_shadow(self.place.store, self.place.own.metrics, ranker)

    def taken(self) -> list[ShadowRequest]:
        self.now += 1.0
        found = []
        while (one := self.shadows.take()) is not None:
            found.append(one[0])
        return found


def test_what_one_thread_has_taken_stays_while_another_takes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, others = abi.calls_take, list[int]()

    def interrupted(*arguments: Any) -> None:
        take(*arguments)
        if threading.current_thread() is threading.main_thread():
            beside = partial(place.wire.take, place.take, [message(1), b"\xff"])
            thread = threading.Thread(target=lambda: others.extend(beside()[1]))
            thread.start()
            thread.join()

    monkeypatch.setattr(abi, "calls_take", interrupted)
    _, left = place.wire.take(place.take, [b"\xff", message(1), message(2)])
    assert left == [0] and others == [1]
    place.own.work_off()


def test_messages_and_scores_are_kept_for_a_shadow_when_their_answers_are_sent(
    ranker: Ranker,
) -> None:
    beside = Beside(ranker)
    sent = [message(samples, seed) for seed, samples in enumerate((3, 1, 5))]
    answers, requests = beside.place.ask(*sent), beside.taken()
    for request, answer, asked in zip(requests, answers, sent, strict=True):
        own = scores_of(infer_response(answer))
        version = beside.place.store.get(MODEL)
        assert request.message == asked and request.version is version
        check_same(request.read(version.reader), version.reader.read_message(asked))
        assert request.samples == len(own["score"]) and request.seconds > 0
        assert request.scores.keys() == own.keys()
        for name, scores in own.items():
            np.testing.assert_array_equal(request.scores[name], scores)
    one = predict_message()
    beside.place.ask(one, method=PREDICT)
    [request] = beside.taken()
    assert request.message == one
    wanted = version.reader.read_message(one, form=MessageFormat.PREDICT)
    check_same(request.read(version.reader), wanted)


def test_calls_that_python_reads_are_kept_as_well(ranker: Ranker) -> None:
    beside = Beside(ranker)
    place = beside.place
    unusual = place.wire.submit(place.plane, message(2, 1))
    place.wire.take(place.take, (message(3, 2), message(1, 3)))
    place.own.work_off()
    assert unusual in place.wire.answers and place.store.get(MODEL).metrics.totals().executions == 1
    assert [r.message for r in beside.taken()] == [message(2, 1), message(3, 2), message(1, 3)]
    assert isinstance(ask(place.plane, message(4)), bytes)
    assert [r.samples for r in beside.taken()] == [4]


def test_a_share_of_calls_is_kept_and_none_without_a_shadow(ranker: Ranker) -> None:
    beside = Beside(ranker, 0.25)
    kept = 0
    for _ in range(40):
        beside.place.ask(*[message(1)] * 25)
        kept += len(beside.taken())
    # Of 1,000 draws: more than seven standard deviations.
    assert 150 < kept < 350
    named = infer_request(good_inputs(1))
    named.model_version = "1"
    beside.place.ask(*[named.SerializeToString()] * 100)
    assert beside.taken() == []
    beside.place.store.offer({MODEL: {"": 1, "1": 1}})
    beside.place.ask(*[message(1)] * 100)
    beside.place.store.offer({MODEL: {"": 1, "1": 1, "canary": 2}})
    assert beside.taken() == []


def test_failed_calls_and_those_with_default_rows_have_no_shadow(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(ranker)
    lose_rows(monkeypatch, item=np.ones(2, np.bool_))
    assert isinstance(beside.place.ask(message(2))[0], bytes)

    def fail(*_: Any, **__: Any) -> Any:
        raise DeadlineError("late")

    monkeypatch.setattr("serving.inference.batch_execution.run_batch", fail)
    assert isinstance(beside.place.ask(message(2))[0], Status)
    assert beside.taken() == []
    dropped = beside.place.own.totals_by("reason", "shadow_dropped_requests_total")
    assert dropped == {"default_rows": 1}


def test_slow_calls_are_reported_as_others_are(
    ranker: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    place = make_place(ranker, reports=RequestReports(None, 1e-6))
    with caplog.at_level("WARNING", logger="sharded_infer"):
        place.ask(message(3, id="slow-one"), message(1))
    told = [record for record in caplog.records if record.getMessage().startswith("slow request")]
    assert {vars(record)["request_id"] for record in told} == {"slow-one", ""}
    assert place.own.total("slow_requests_total") == 2


@settings(max_examples=150, deadline=None)
@given(st.lists(inputs_by_chance(), min_size=1, max_size=4))
def test_merged_calls_are_what_the_reference_merges_and_their_empty_bags_are_counted(
    requests: list[dict[str, Any]],
) -> None:
    scheduler = Scheduler(limits=QueueLimits())
    calls = PredictCalls(scheduler)
    reader = InputReader(SPEC, max_batch=MAX_BATCH)
    queue = VersionQueue(BatchingPolicy(BatchingMode.BATCHED, 10_000, 0.0), {1: 1e-9})
    scheduler.add_queue(queue)
    work = BatchWork(SPEC)
    model = SimpleNamespace(name=SPEC.name, version=1, spec=SPEC, work=work)
    metrics = ServerMetrics().version(SPEC.name, 1)
    metrics.describe(VersionInfo(0.06, (1,), ("score",), FEATURES))
    version: Any = SimpleNamespace(reader=reader, queue=queue, model=model, metrics=metrics)
    calls.routes.add(version)
    calls.routes.set_names({(SPEC.name, ""): version})
    wire = Wire()
    wire.attach(calls)
    messages = [serialized(inputs) for inputs in requests]
    _, left = wire.take(
        lambda events, count, *_: calls.take(Sender.GRPC, events, count).left, messages
    )
    inputs = [reader.native.read_message(one) for one in messages]
    # Taken are those that the compiled reader reads, unless they are not finite.
    assert left == [at for at, one in enumerate(inputs) if one is None]
    taken = [one for one in inputs if one is not None]
    batch, _, _ = calls.begin(10.0**9)
    if not taken:
        assert batch is None
        return
    assert batch is not None
    merged, wanted = batch.input(), merge_inputs(taken)
    assert batch.info.work == sum(map(work.units, taken)) == work.units(merged)
    # One row of a dense input is repeated for its samples in both.
    np.testing.assert_array_equal(merged.repeats, wanted.repeats)
    check_same(replace(merged, repeats=None), replace(wanted, repeats=None))
    scores = (np.zeros(merged.batch_size, np.float32),)
    work = SimpleNamespace(defaults={}, unknown={})
    ran: Any = SimpleNamespace(scores=scores, work=work, lookup_seconds=0.0, tower_seconds=0.0)
    calls.finish(batch, ran, merging=0.0, now=0.0)
    first = metrics.block.cell(EMPTY_BAGS)
    own = metrics._cells.own
    counted = [int(own[first + place]) for place in range(len(SPEC.sparse_inputs))]
    by_hand = [empty_bags_of(one) for one in taken]
    assert counted == [sum(one[name] for one in by_hand) for name in SPEC.sparse_inputs]


def empty_bags_of(request: ModelInput) -> dict[str, int]:
    """Samples with an empty bag of each feature; of a feature of several tables, in its first."""
    found: dict[str, int] = {}
    for feature, name in enumerate(FEATURES):
        (group,) = [group for group in request.groups if feature in group.features]
        lengths = group.lengths[group.features.index(feature)].tolist()
        bags = lengths if len(lengths) == request.batch_size else lengths * request.batch_size
        found.setdefault(name, sum(length == 0 for length in bags))
    return found


def keyed_message(key: str | int | None) -> bytes:
    request = infer_request(good_inputs(1))
    if isinstance(key, str):
        request.parameters["routing_key"].string_param = key
    elif key is not None:
        request.parameters["routing_key"].int64_param = key
    return bytes(request.SerializeToString())


def share_place(ranker: Ranker, weights: dict[str, int]) -> Place:
    """Both planes share the requests among labels of their one version."""
    place = make_place(ranker)
    for store in (place.own.store, place.others.store):
        names = {"": 1, "1": 1, **dict.fromkeys(weights, 1)}
        store.offer({MODEL: names}, {MODEL: weights})
    return place


KEYS = ["a", "user-17", "x" * 20, "y" * 300, 0, 1, -1, 2**63 - 1, -(2**63), *range(100, 250)]


def test_labels_are_chosen_by_key_as_for_other_calls_and_by_every_method(ranker: Ranker) -> None:
    place = share_place(ranker, {"stable": 50, "canary": 20, "a-long-name-of-a-label": 30})
    labels = set()
    for key in KEYS:
        sent = keyed_message(key)
        (own,) = place.ask(sent)
        assert own == ask(place.other, sent)
        label = infer_response(own).parameters["label"].string_param
        sent = predict_message(**{"text_key" if isinstance(key, str) else "number_key": key})
        answers = (
            *place.ask(sent, method=PREDICT),
            ask(place.other, sent, method=PredictMethod.PREDICT),
        )
        for answer in answers:
            assert isinstance(answer, bytes)
            assert predictor_pb2.PredictResponse.FromString(answer).label == label
        labels.add(label)
    assert labels == {"stable", "canary", "a-long-name-of-a-label"}
    asked = infer_request(good_inputs(1))
    asked.model_version = "canary"
    (named,) = place.ask(asked.SerializeToString())
    assert not infer_response(named).parameters


def test_without_a_key_chance_decides_and_again_where_python_takes_the_call(ranker: Ranker) -> None:
    place = share_place(ranker, {"stable": 50, "canary": 50})
    router, labels = place.plane._router, []
    for _ in range(200):
        numbers, left = place.wire.take(place.take, (keyed_message(None),))
        assert left == []
        place.plane.dispatcher.work()
        answer = place.wire.answers.pop(numbers[0])
        header = SentMessage(keyed_message(None)).header()
        again = router.route(header, partial(place.plane.compiled.chance, numbers[0]))
        labels.append(infer_response(answer).parameters["label"].string_param)
        assert again.label == labels[-1]
    # Six standard deviations.
    assert 58 <= labels.count("canary") <= 142
