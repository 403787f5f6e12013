"""Predict calls of one process, which compiled code has from their messages to their answers.

    take     compiled code reads the usual calls among a transport's events and queues them
    offer    queues a call that Python has read
    begin    the batch to run now, with its calls merged into one input
    finish   answers a batch

See `native/call/calls.h`. Thread-safe: the GIL guards all of it.
"""

import ctypes
import random
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of, array_at
from serving.abi import calls as abi
from serving.abi.calls import Sender
from serving.abi.counting import AnsweredRequest
from serving.abi.reader import SharedRegion
from serving.abi.scheduler import Refused
from serving.inference.call_batch import CallBatch
from serving.inference.routes import Routes
from serving.protocol.codec import Codec
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.protocol.request_header import RequestHeader
from serving.routing.weighted_choice import mixed
from serving.scheduler.refusals import Refusal, refusal
from serving.scheduler.scheduler import Scheduler
from serving.shared_memory.region_file import path_of
from serving.shared_memory.regions import Region, Regions, SharedMemory, Span
from serving.status import Status
from sharded_infer.engines.executor import RequestResult
from sharded_infer.inputs.model_input import ModelInput

FORMS = {
    PredictMethod.MODEL_INFER: abi.Form.INFER,
    PredictMethod.PREDICT: abi.Form.PREDICT,
    PredictMethod.MODEL_STREAM_INFER: abi.Form.STREAM,
    PredictMethod.HTTP_INFER: abi.Form.JSON,
    PredictMethod.HTTP_INFER_VERSION: abi.Form.JSON,
}
# A body and the length of its JSON (None: all of it) to a codec and its request.
KeptBody = Callable[[bytes, int | None], tuple[Codec[Any], Any]]
# By `Encoding` of native/transport/settings.h.
_COMPRESSED = ("", "gzip", "deflate")


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call that Python has read. Times are monotonic.

    Attributes:
        number: of the transport's call, or of the reply if `by_python`.
        outputs: for each output of the model 0: not requested, 1, or 2: in binary.
        trace: 0: it is not traced.
        label: the label whose weight chose the version; empty: none did.
        message: as received, if another version is to score it too.
        places: outputs that go to shared memory, by position.
    """

    method: PredictMethod
    header: RequestHeader
    model_input: ModelInput
    number: int
    by_python: bool
    arrived: float
    deadline: float
    size_bytes: int
    outputs: bytes
    trace: int = 0
    label: str = ""
    message: bytes | None = None
    places: Sequence[tuple[int, Span]] = ()


class PredictCalls:
    """The calls of one process, with the `routes` of its versions.

    `backlog` is in seconds: a call that must be answered sooner will be refused.
    """

    def __init__(self, scheduler: Scheduler, memory: SharedMemory | None = None) -> None:
        """Takes no events before `attach`; `memory` is clients' shared memory, if it is offered."""
        # Referenced for compiled code.
        self._scheduler = scheduler
        self._memory = memory
        # As compiled code has them; replaced, never changed.
        self._regions: Regions | None = None
        self._address: int = abi.calls_create(scheduler.address)
        weakref.finalize(self, abi.calls_destroy, self._address)
        self._flush: Callable[[], None] | None = None
        self.compress: Callable[[int, Answer, str], None] | None = None
        self.kept_body: KeptBody | None = None
        self._chance_seed = random.getrandbits(64)
        abi.calls_set_chance(self._address, self._chance_seed)
        self.routes = Routes(self._address)
        self.backlog = 0.0

    def attach(
        self,
        server: tuple[int, int, int, int, int],
        methods: Iterable[PredictMethod | None],
        most_calls: int,
    ) -> None:
        """Answers calls of the server of gRPC.

        Args:
            server: as `Http2Server.answering`.
            methods: of each of the server's methods; None: not a predict call.
            most_calls: with so many in progress, `take` leaves messages of streams.
        """
        forms = _forms(methods)
        abi.calls_attach(self._address, *server, forms, len(forms), most_calls)

    def attach_http(
        self,
        server: tuple[int, int, int],
        methods: Iterable[PredictMethod | None],
        flush: Callable[[], None],
        compress: Callable[[int, Answer, str], None],
        kept_body: "KeptBody | None" = None,
    ) -> None:
        """Answers calls of the server of HTTP, as `attach`.

        Args:
            flush: sends what `end` has left.
            compress: sends a call's answer in an encoding.
            kept_body: a body to be read for another version; None: none is kept.
        """
        self.compress, self.kept_body = compress, kept_body
        forms = _forms(methods)
        abi.calls_attach_http(self._address, *server, forms, len(forms))
        self._flush = flush

    def set_traced(self, bound: int) -> None:
        """Traces calls whose clients ask for it, and `bound` of 2^64 others."""
        abi.calls_set_traced(self._address, min(bound, 2**64 - 1))

    def set_kept(self, share: float) -> None:
        """Sets the share of calls without a version whose messages are kept, by chance."""
        bound = min(round(share * 2.0**64), 2**64 - 1)
        abi.calls_set_kept(self._address, bound)

    def chance(self, number: int, place: int = 0) -> int:
        """The 64 bits by which compiled code routes the transport's call without a key.

        `place` is that of a message in its stream.
        """
        return mixed(self._chance_seed ^ number ^ place << 40 & (2**64 - 1))

    def take(self, sender: Sender, events: int, count: int) -> "TakenCalls":
        """Queues the usual calls among a server's events, at the address of their structs."""
        self._set_regions()
        taken = abi.Taken()
        abi.calls_take(self._address, sender, events, count, taken)
        self.backlog = taken.backlog
        return TakenCalls(
            taken.queued,
            array_at(ctypes.c_int64, taken.left, taken.left_count)[:],
            array_at(abi.TakenRoute, taken.routes, taken.route_count),
            array_at(abi.TracedCall, taken.traced, taken.traced_count),
            self._chain(taken.cancelled),
        )

    def offer(
        self, call: ReadCall, route: int, mapped: Sequence[str], now: float
    ) -> Refusal | None:
        """Queues a call for the version of a `route`, or returns why it is refused.

        `mapped` are the version's tables whose unknown ids are counted.
        """
        fields, refused = _fields_of(call, route, mapped), Refused()
        if abi.calls_offer(self._address, fields, now, refused):
            return None
        return refusal(refused, left=call.deadline - now, expected=refused.end - now)

    def cancel(self, number: int) -> CallBatch | None:
        """Removes a waiting call of Python from its queue; None if it does not wait."""
        address = abi.calls_cancel(self._address, number)
        return self._batch(address)

    def begin(self, now: float) -> tuple[CallBatch | None, list[CallBatch], bool]:
        """The batch to run now, calls that cannot be answered in time, and if more can run."""
        begun = abi.Begun()
        abi.calls_begin(self._address, now, begun)
        return self._batch(begun.batch), self._chain(begun.dropped), bool(begun.more)

    def expire(self, now: float) -> list[CallBatch]:
        """Removes calls whose deadlines have passed."""
        return self._chain(abi.calls_expire(self._address, now))

    def occupy(self, queue: int, now: float) -> int | None:
        """Takes a free slot for another task, while no call waits; `end` frees it.

        Args:
            queue: address of one with the costs of such tasks.
        """
        address: int | None = abi.calls_occupy(self._address, queue, now)
        return address

    def part(self, batch: CallBatch, positions: Sequence[int]) -> CallBatch:
        """Moves calls of a batch to a batch of their own."""
        moved = (ctypes.c_int64 * len(positions))(*positions)
        address = abi.calls_part(self._address, batch.address, moved, len(positions))
        return CallBatch(address, batch.version)

    def refuse(self, batch: CallBatch, position: int, status: Status) -> None:
        """Ends a call that `finish` has failed, unless Python sends its answer."""
        words = status.message.encode()
        abi.calls_refuse(
            self._address, batch.address, position, status.code.number, words, len(words)
        )

    def finish(
        self, batch: CallBatch, ran: RequestResult, merging: float, now: float
    ) -> "FinishedBatch":
        """Writes and counts the answers, which `end` sends. The caller holds the lock of metrics.

        Args:
            merging: seconds that count with the lookups.
            now: since 1970.
        """
        if batch.info.placed:
            self._set_regions()
        scores = [np.ascontiguousarray(output, np.float32) for output in ran.scores]
        listed = (abi.Scores * len(scores))(
            *(abi.Scores(address_of(s), s.shape[1] if s.ndim == 2 else 0) for s in scores)
        )
        defaults, unknown = _Counts(ran.work.defaults), _Counts(ran.work.unknown)
        cells, counted = batch.version.metrics.answered_cells
        finished = abi.Finished()
        abi.calls_finish(
            self._address,
            batch.address,
            abi.BatchScores(
                ctypes.addressof(listed),
                ran.lookup_seconds + merging,
                ran.tower_seconds,
                ctypes.addressof(defaults.listed),
                len(defaults.listed),
                ctypes.addressof(unknown.listed),
                len(unknown.listed),
                cells,
                counted,
                now,
            ),
            finished,
        )
        return FinishedBatch(finished, batch)

    def fail(self, batch: CallBatch, status: Status) -> tuple[float, list[int]]:
        """Ends the calls of a batch with a status.

        Returns the seconds since they came, summed, and the numbers of those that Python ends.
        """
        failed, words = abi.Failed(), status.message.encode()
        abi.calls_fail(
            self._address,
            batch.address,
            status.code.number,
            words,
            len(words),
            failed,
        )
        answers = array_at(abi.PythonAnswer, failed.answers, failed.answer_count)
        return failed.seconds, [answer.number for answer in answers]

    def end(self, address: int, now: float, *, by_clock: bool) -> None:
        """Sends a batch's answers and frees its calls, or frees an occupied slot.

        `by_clock`: its cost is its elapsed time, not its thread's processor time.
        """
        ended = abi.BatchEnd()
        abi.calls_end(self._address, address, now, by_clock, ended)
        self.backlog = ended.backlog
        if ended.waits and self._flush is not None:
            self._flush()

    def _set_regions(self) -> None:
        if self._memory is None or (regions := self._memory.regions()) is self._regions:
            return
        self._regions = regions
        listed = [_shared_region(region) for region in regions.values()]
        abi.calls_set_regions(
            self._address,
            (SharedRegion * len(listed))(*listed),
            len(listed),
            self._memory.most_bytes,
        )

    def _batch(self, address: int | None) -> CallBatch | None:
        if not address:
            return None
        return CallBatch.at(address, self.routes)

    def _chain(self, address: int | None) -> list[CallBatch]:
        batches = []
        while (batch := self._batch(address)) is not None:
            batches.append(batch)
            address = batch.info.next
        return batches


@dataclass(frozen=True, slots=True)
class TakenCalls:
    """What became of a transport's events.

    Attributes:
        queued: number of calls.
        left: positions of the events that Python handles; -1 - position: the call is to be traced.
        routes: of the queued calls, and of those that cannot be in time.
        cancelled: calls that waited.
    """

    queued: int
    left: Sequence[int]
    routes: Iterable[abi.TakenRoute]
    traced: Iterable[abi.TracedCall]
    cancelled: Sequence[CallBatch]


class FinishedBatch:
    """Answers of a batch, valid until it ends.

    Attributes:
        decode_seconds, encode_seconds: summed over the calls.
        failed: positions of calls whose outputs could not be written to shared memory.
        slowest_seconds: from a call's message to its answer.
    """

    __slots__ = (
        *("_finished", "counted", "decode_seconds", "encode_seconds"),
        *("failed", "slowest_seconds"),
    )

    def __init__(self, finished: abi.Finished, batch: CallBatch) -> None:
        self._finished = finished
        self.decode_seconds: float = finished.decode_seconds
        self.encode_seconds: float = finished.encode_seconds
        self.slowest_seconds: float = finished.slowest_seconds
        self.failed = array_at(ctypes.c_int64, finished.failed, finished.failed_count)[:]
        self.counted = array_at(AnsweredRequest, finished.counted, batch.count)

    @property
    def samples(self) -> int:
        """Samples of the answered calls."""
        samples: int = self._finished.samples
        return samples

    def by_python(self) -> Iterator[tuple[int, Answer, str]]:
        """Calls whose answers Python sends: numbers, answers, and how to compress those of HTTP."""
        finished = self._finished
        for answer in array_at(abi.PythonAnswer, finished.answers, finished.answer_count):
            body = ctypes.string_at(answer.data, answer.bytes)
            yield answer.number, Answer(body, answer.json_bytes), _COMPRESSED[answer.encoding]


class _Counts:
    """Numbers of each sample by table, for compiled code."""

    def __init__(self, counts: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = {table: samples.astype(np.int64) for table, samples in counts.items()}
        self.listed = (abi.TableCounts * len(counts))(
            *(abi.TableCounts(name.encode(), address_of(ids)) for name, ids in self._arrays.items())
        )


def _shared_region(region: Region) -> SharedRegion:
    name, path = region.name.encode(), path_of(region.key).encode()
    return SharedRegion(name, len(name), path, region.offset, region.byte_size, *region.identity)


def _forms(methods: Iterable[PredictMethod | None]) -> "ctypes.Array[ctypes.c_int32]":
    forms = [abi.Form.NO_FORM if method is None else FORMS[method] for method in methods]
    return (ctypes.c_int32 * len(forms))(*forms)


def _fields_of(call: ReadCall, route: int, mapped: Sequence[str]) -> abi.CallFields:
    header, model_input = call.header, call.model_input
    request_id, label = header.request_id.encode(), call.label.encode()
    regions = [np.frombuffer(span.region.encode(), np.uint8) for _, span in call.places]
    outputs = np.frombuffer(call.outputs, np.uint8)
    own = np.zeros(sum(len(group.features) for group in model_input.groups), np.uint8)
    kept: list[object] = [regions, outputs, own]
    by_kind = {True: abi.GroupArrays(), False: abi.GroupArrays()}
    for group in model_input.groups:
        is_own = group.batch_size == model_input.batch_size
        own[list(group.features)] = is_own
        lengths, values = np.ascontiguousarray(group.lengths), np.ascontiguousarray(group.values)
        weights = None if group.weights is None else np.ascontiguousarray(group.weights)
        kept += (lengths, values, weights)
        by_kind[is_own] = abi.GroupArrays(
            _address(lengths),
            _address(values),
            None if weights is None else _address(weights),
            len(values),
        )
    dense = [np.ascontiguousarray(array, np.float32) for array in model_input.dense]
    unknown = dict(model_input.ids_unknown)
    arrays: dict[str, ctypes.Array[Any]] = {
        "placed": (abi.PlacedOutput * len(regions))(
            *(
                abi.PlacedOutput(
                    position, _address(region), len(region), span.offset, span.byte_size
                )
                for (position, span), region in zip(call.places, regions, strict=True)
            )
        ),
        "dense": (ctypes.c_void_p * len(dense))(*map(_address, dense)),
        "dense_rows": (ctypes.c_int64 * len(dense))(*map(len, dense)),
        "unknown": (ctypes.c_int64 * len(mapped))(*(unknown.get(table, 0) for table in mapped)),
    }
    fields = abi.CallFields(
        route=route,
        number=call.number,
        by_python=call.by_python,
        form=FORMS[call.method],
        size_bytes=call.size_bytes,
        priority=header.priority,
        arrived=call.arrived,
        deadline=call.deadline,
        outputs=_address(outputs),
        reports_unknown=header.reports_unknown_ids,
        traced=call.trace,
        id=request_id,
        id_bytes=len(request_id),
        label=label,
        label_bytes=len(label),
        message=call.message,
        message_bytes=0 if call.message is None else len(call.message),
        placed_count=len(regions),
        batch=model_input.batch_size,
        ids_outside=model_input.ids_outside,
        gaps=model_input.may_have_gaps,
        own=_address(own),
        groups=(by_kind[True], by_kind[False]),
        **{name: ctypes.addressof(array) for name, array in arrays.items()},
    )
    # Referenced until compiled code has copied them.
    fields.kept = (kept, dense, arrays)
    return fields


def _address(array: NDArray[Any]) -> int:
    # `address_of` takes only writable arrays.
    address: int = array.__array_interface__["data"][0]
    return address
