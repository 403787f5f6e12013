"""Predict calls that stay in compiled code from message to answer.

    take: compiled code reads the usual calls among a transport's events and queues them
    the dispatcher takes a batch: its held calls are one `HeldBatch`
    the batch is merged, run and answered, with one call of compiled code for each step

Unusual calls go to `DataPlane.submit`. Calls that would be too late, leave the queue without being
run, or whose clients have gone, end together: under overload most calls do. A held call that runs
beside other requests becomes a `PredictCall`.
"""

import ctypes
import random
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from kernels.native_library import address_of
from serving.inference.held_batch import (
    FORMS,
    METHODS,
    HeldAnswers,
    HeldBatch,
    count_ended,
    kept_call,
)
from serving.inference.held_calls_library import (
    AnsweredStruct,
    DescriptionStruct,
    KeptStruct,
    Layout,
    RunStruct,
    ScoresStruct,
    TakenStruct,
    held_calls_library,
)
from serving.inference.held_versions import HeldVersions, reader_of
from serving.inference.predict_call import PredictCall
from serving.inference.shadows.shadow_request import ShadowRequest
from serving.protocol.codec import MESSAGE_CODECS
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.routing.weighted_choice import mixed
from serving.scheduler.batcher import Batcher
from serving.scheduler.dispatcher import complete
from serving.scheduler.queued_request import RequestState
from serving.status import Status, status_of
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.engines.executor import RequestResult
from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import ModelInput

# `AnsweredRequest` of native/base/counting.h.
_COUNTED_NUMBERS = 8


class HeldCalls:
    """The held calls of one process. Thread-safe: compiled code is called with the GIL.

    Attributes:
        versions: with held calls.
    """

    def __init__(
        self,
        batcher: Batcher[Any],
        *,
        changed: Callable[[int], None],
        show_queue: Callable[[LoadedVersion], None],
        outcome: Callable[[PredictCall], Any],
        answered: Callable[[PredictCall], None],
    ) -> None:
        """Takes no calls before `attach`.

        Args:
            changed: called with the number of calls that came, or, negative, left.
            show_queue: called with each version whose calls are queued now.
            outcome: answer or status of a call that has become a `PredictCall`.
            answered: called with such a call when its answer was sent.
        """
        self._library = held_calls_library()
        self._changed, self._show_queue = changed, show_queue
        self._outcome, self._answered = outcome, answered
        self._reply: Callable[[int, Any], None] | None = None
        # Referenced for compiled code.
        self._batcher = batcher
        self._address: int = self._library.sharded_infer_calls_create(batcher.address)
        weakref.finalize(self, self._library.sharded_infer_calls_destroy, self._address)
        self._chance_seed = random.getrandbits(64)
        self._library.sharded_infer_calls_set_chance(self._address, self._chance_seed)
        self.versions = HeldVersions(self._library, self._address)
        batcher.hold(self)

    def attach(
        self,
        server: tuple[int, int, int],
        methods: Iterable[PredictMethod | None],
        reply: Callable[[int, bytes | Status], None],
    ) -> None:
        """Answers calls of one compiled server.

        Args:
            server: as `Http2Server.answering`.
            methods: of each of the server's methods; None: not a predict call.
            reply: answers a call that has become a `PredictCall`.
        """
        self._reply = reply
        forms = [0 if method is None else FORMS.get(method, 0) for method in methods]
        listed = (ctypes.c_int32 * len(forms))(*forms)
        self._library.sharded_infer_calls_attach(self._address, *server, listed, len(forms))

    def set_traced(self, bound: int) -> None:
        """Traces `bound` of 2^64 calls whose clients do not decide, in Python."""
        bounded = min(bound, 2**64 - 1)
        self._library.sharded_infer_calls_set_traced(self._address, bounded)

    def chance(self, number: int) -> int:
        """The 64 bits by which compiled code routes this call without a key."""
        return mixed(self._chance_seed ^ number)

    def set_kept(self, share: float) -> None:
        """Sets the share of calls without a version whose messages are kept, by chance."""
        bound = min(round(share * 2.0**64), 2**64 - 1)
        self._library.sharded_infer_calls_set_kept(self._address, bound)

    def take(self, events: int, count: int) -> Sequence[int]:
        """Takes the usual predict calls among events, at the address of their structs.

        Returns the positions of the others. -1 - position: this call is to be traced.
        """
        taken, left = TakenStruct(), (ctypes.c_int64 * count)()
        others = self._library.sharded_infer_calls_take(self._address, events, count, left, taken)
        if taken.calls:
            self._changed(taken.calls)
        for at in range(taken.routes):
            version = self.versions.at(taken.touched[at])
            if taken.ended:
                self._changed(-count_ended(version, taken.of_route[at]))
            self._show_queue(version)
        return left[:others]

    def cancel(self, number: int) -> PredictCall | None:
        """The waiting call of this number, removed from the queue, or None."""
        handle = self._library.sharded_infer_calls_cancel(self._address, number)
        if not handle:
            return None
        call = self.apart((handle,))[0]
        call.state = RequestState.CANCELLED
        return call

    def together(self, packed: bytes, samples: int) -> HeldBatch:
        """Combines calls of one version, with packed int64 handles, into one request."""
        handles = array("q", packed)
        route = self._library.sharded_infer_calls_route_of(self._address, handles[0])
        return HeldBatch(self.versions.at(route), handles, samples, self._batch_ended)

    def apart(self, handles: Sequence[int]) -> list[PredictCall]:
        """Releases calls from compiled code."""
        calls = self.described(handles)
        self._release(array("q", handles))
        return calls

    def dropped(self, handles: Sequence[int], states: Sequence[RequestState]) -> list[HeldBatch]:
        """Calls that left the queue without being run, grouped by version and state."""
        groups: dict[tuple[int, RequestState], array[int]] = {}
        for handle, state in zip(handles, states, strict=True):
            route = self._library.sharded_infer_calls_route_of(self._address, handle)
            groups.setdefault((route, state), array("q")).append(handle)
        batches = []
        for (route, state), found in groups.items():
            batch = HeldBatch(self.versions.at(route), found, 0, self._refuse)
            batch.state = state
            batches.append(batch)
        return batches

    def described(self, handles: Sequence[int]) -> list[PredictCall]:
        """Calls as Python objects. They are still held, and these are not to be answered."""
        return [self._described(handle) for handle in handles]

    def deadline(self, batch: HeldBatch) -> float:
        """Earliest deadline of the calls, on the monotonic clock; infinity: there is none."""
        handles, count = batch.handles.buffer_info()
        found: float = self._library.sharded_infer_calls_deadline(self._address, handles, count)
        return found

    def merged(self, batch: HeldBatch) -> ModelInput | None:
        """The calls as one input; None if they do not share the same features."""
        reader = reader_of(batch.version)
        handles, count = batch.handles.buffer_info()
        layout = Layout()
        starts = np.empty(len(reader.widths), np.int64)
        call = self._library
        if not call.sharded_infer_calls_lay_out(
            self._address, handles, count, layout, address_of(starts)
        ):
            return None
        memory, sizes = np.empty(layout[1], np.int64), np.empty(count, np.int64)
        call.sharded_infer_calls_merge(
            self._address, handles, count, layout, address_of(starts),
            address_of(memory), address_of(sizes),
        )  # fmt: skip
        numbers = list(layout)
        rows = [numbers[0]] * len(starts)
        # Without a second group all features are in the first.
        own = self._describe(batch.handles[0])[1] if numbers[11] else b""
        repeats = sizes if count > 1 and numbers[11] else None
        return reader.assemble(numbers, own, starts.tolist(), rows, memory, repeats)

    def answer(self, batch: HeldBatch, ran: RequestResult, merging: float) -> HeldAnswers:
        """Writes each call's answer for `send`; the `merging` seconds count with the lookups."""
        scores = [np.ascontiguousarray(one, np.float32) for one in ran.scores]
        listed = (ScoresStruct * len(scores))(
            *(ScoresStruct(address_of(s), s.shape[1] if s.ndim == 2 else 0) for s in scores)
        )
        run = RunStruct(batch.started, ran.lookup_seconds + merging, ran.tower_seconds)
        counted = np.empty((batch.count, _COUNTED_NUMBERS))
        sums = AnsweredStruct()
        address = self._library.sharded_infer_calls_answer(
            self._address, *batch.handles.buffer_info(), listed, run, address_of(counted), sums
        )
        return HeldAnswers(address, counted, sums)

    def kept(self, batch: HeldBatch, ran: RequestResult, merging: float) -> list[ShadowRequest]:
        """Held calls whose messages are kept for another version; `merging` as in `answer`."""
        found = (KeptStruct * batch.count)()
        handles, count = batch.handles.buffer_info()
        kept = self._library.sharded_infer_calls_kept(self._address, handles, count, found)
        return [kept_call(batch, one, ran, merging) for one in found[:kept]]

    def send(self, batch: HeldBatch, answers: HeldAnswers) -> None:
        """Sends the answers, and releases the calls."""
        handles, _ = batch.handles.buffer_info()
        self._library.sharded_infer_calls_send(self._address, handles, answers.address)
        self._release(batch.handles)
        self._changed(-batch.count)

    def _release(self, handles: "array[int]") -> None:
        self._library.sharded_infer_calls_release(self._address, *handles.buffer_info())

    def _batch_ended(self, batch: HeldBatch) -> None:
        if batch.error is None:
            return
        # The dispatcher could not run it, so its calls are unanswered.
        for call in self.apart(batch.handles):
            call.error = batch.error
            complete(call)

    def _describe(self, handle: int) -> tuple[DescriptionStruct, bytes]:
        """The compiled description, and the flags of features in the first group."""
        found = DescriptionStruct()
        self._library.sharded_infer_calls_describe(self._address, handle, found)
        features = len(reader_of(self.versions.at(found.route)).features)
        return found, ctypes.string_at(found.own, features)

    def _refuse(self, batch: HeldBatch) -> None:
        status = status_of(batch.error or InternalError("calls are refused without a reason"))
        words = status.message.encode()
        seconds = self._library.sharded_infer_calls_refuse(
            self._address, *batch.handles.buffer_info(), status.code.number, words, len(words)
        )
        batch.version.metrics.failed(status.code.name, seconds, batch.count)
        self._changed(-batch.count)

    def _described(self, handle: int) -> PredictCall:
        found, own = self._describe(handle)
        version = self.versions.at(found.route)
        reader, names = reader_of(version), version.model.spec.tower.outputs
        memory = np.empty(found.layout[1], np.int64)
        ctypes.memmove(address_of(memory), found.words, memory.nbytes)
        dense = len(reader.widths)
        starts, rows = _numbers(found.dense_at, dense), _numbers(found.dense_rows, dense)
        model_input = reader.assemble(found.layout[:], own, starts, rows, memory)
        request_id = ctypes.string_at(found.id, found.id_bytes).decode("ascii")
        method = METHODS[found.form]
        call = PredictCall(
            version,
            RequestHeader(
                version.model.name, str(version.model.version), request_id, found.priority
            ),
            tuple(at for at in range(len(names)) if found.outputs >> at & 1),
            model_input,
            codec=MESSAGE_CODECS[method],
            memory=RequestTensors(None),
            method=method,
            arrived=found.arrived,
            deadline=found.deadline,
            size_bytes=found.size_bytes,
            requests_ahead=found.ahead,
            label=found.label.decode("ascii"),
            message=ctypes.string_at(found.message, found.message_bytes) or None,
            on_done=partial(self._call_ended, found.call),
        )
        call.decoded = found.decoded
        return call

    def _call_ended(self, number: int, call: PredictCall) -> None:
        try:
            if self._reply is not None:
                self._reply(number, self._outcome(call))
                self._answered(call)
        finally:
            self._changed(-1)


def _numbers(address: int, count: int) -> list[int]:
    return list((ctypes.c_int64 * count).from_address(address)) if count else []
