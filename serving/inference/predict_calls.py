"""Predict calls of one process, which compiled code has from their messages to their answers.

    take        compiled code reads the usual calls among a transport's events and queues them
    take_read   reads and queues a call that Python has rewritten
    begin       the batch to run now, with its calls merged into one input
    finish      answers a batch

See `native/call/calls.h`. Thread-safe: the GIL guards all of it.
"""

import ctypes
import os
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
from serving.abi.scheduler import Refusal as Unqueued
from serving.abi.scheduler import Refused
from serving.inference.call_batch import FORMS, CallBatch
from serving.inference.routes import Routes
from serving.protocol.infer_answer import Answer
from serving.protocol.predict_method import PredictMethod
from serving.protocol.readers.input_reader import InputReader
from serving.routing.weighted_choice import mixed
from serving.scheduler.refusals import Refusal, refusal
from serving.scheduler.scheduler import Scheduler
from serving.shared_memory.region_file import path_of
from serving.shared_memory.regions import Region, Regions, SharedMemory
from serving.status import Status
from sharded_infer.engines.executor import RequestResult
from sharded_infer.inputs.model_input import ModelInput

# Reads a body, with the length of its JSON or None (all of it), for another version.
ReadBody = Callable[[bytes, int | None, InputReader], ModelInput]
# By `Encoding` of native/transport/settings.h; empty: not compressed.
ENCODINGS = ("", "gzip", "deflate")


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
        self.read_body: ReadBody | None = None
        self._chance_seed = random.getrandbits(64)
        abi.calls_set_chance(self._address, self._chance_seed)
        self.routes = Routes(self._address)
        self.backlog = 0.0

    @property
    def address(self) -> int:
        """Of the compiled `Calls`."""
        return self._address

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
        read_body: ReadBody | None = None,
    ) -> None:
        """Answers calls of the server of HTTP, as `attach`.

        Args:
            flush: sends what `end` has left.
            compress: sends a call's answer in an encoding.
            read_body: reads a body that was kept; None: none is.
        """
        self.compress, self.read_body = compress, read_body
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

    def take_read(self, call: abi.ReadCall, now: float) -> tuple[bool, Refusal | None]:
        """Reads and queues a call; if not, why it is refused, or None: its message is unusual."""
        self._set_regions()
        refused = Refused()
        queued = bool(abi.calls_take_read(self._address, call, now, refused))
        if refused.why == Unqueued.NONE:
            return queued, None
        return False, refusal(refused, left=call.deadline - now, expected=refused.end - now)

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
        """Ends a call that `finish` has failed with a status."""
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

    def fail(self, batch: CallBatch, status: Status) -> float:
        """Ends the calls of a batch with a status; returns the seconds since they came, summed."""
        words, code = status.message.encode(), status.code.number
        seconds: float = abi.calls_fail(self._address, batch.address, code, words, len(words))
        return seconds

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
        "_finished",
        "counted",
        "decode_seconds",
        "encode_seconds",
        "failed",
        "slowest_seconds",
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

    def long_answers(self) -> Iterator[tuple[int, Answer, str]]:
        """Answers that Python compresses and sends: the calls' numbers, and the encodings."""
        finished = self._finished
        for answer in array_at(abi.LongAnswer, finished.answers, finished.answer_count):
            body = ctypes.string_at(answer.data, answer.bytes)
            yield answer.number, Answer(body, answer.json_bytes), ENCODINGS[answer.encoding]


class _Counts:
    """Numbers of each sample by table, for compiled code."""

    def __init__(self, counts: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = {table: samples.astype(np.int64) for table, samples in counts.items()}
        self.listed = (abi.TableCounts * len(counts))(
            *(abi.TableCounts(name.encode(), address_of(ids)) for name, ids in self._arrays.items())
        )


def _shared_region(region: Region) -> SharedRegion:
    name, path = region.name.encode(), os.fsencode(path_of(region.key))
    return SharedRegion(name, len(name), path, region.offset, region.byte_size, *region.identity)


def _forms(methods: Iterable[PredictMethod | None]) -> "ctypes.Array[ctypes.c_int32]":
    forms = [abi.Form.NO_FORM if method is None else FORMS[method] for method in methods]
    return (ctypes.c_int32 * len(forms))(*forms)
