"""Predict calls whose messages are unusual: their inputs are rewritten for compiled code."""

import ctypes
from collections.abc import Iterable
from time import monotonic
from typing import NamedTuple

from serving.abi import calls as abi
from serving.errors import DeadlineError
from serving.inference.call_batch import FORMS
from serving.inference.predict_calls import ENCODINGS, PredictCalls
from serving.inference.shadows.shadows import Shadows
from serving.protocol.predict_method import PredictMethod
from serving.protocol.predict_request import PredictRequest
from serving.protocol.request_header import RequestHeader
from serving.protocol.request_tensors import RequestTensors
from serving.routing.router import Route
from serving.scheduler.scheduler import Scheduler
from serving.shared_memory.regions import SharedMemory
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.errors import InternalError

Metadata = Iterable[tuple[str, str | bytes]]
_FOREVER = float("inf")
_TOO_LATE = "the deadline cannot be met: more waits than can be answered"


class Arrival(NamedTuple):
    """How a call came.

    Attributes:
        number: of its transport's call.
        time_remaining: seconds to the client's deadline; None if it has none.
        metadata: of the request; needed only if requests are traced.
        drawn: the request is sampled for tracing.
        place: of a message in its stream.
        encoding: gzip or deflate, if an answer over HTTP may be compressed; else empty.
    """

    method: PredictMethod
    number: int
    time_remaining: float | None = None
    metadata: Metadata = ()
    drawn: bool = False
    place: int = 0
    encoding: str = ""


class UnusualCalls:
    """Queues calls that compiled code has not taken by itself. Thread-safe."""

    def __init__(
        self,
        calls: PredictCalls,
        scheduler: Scheduler,
        *,
        memory: SharedMemory | None,
        shadows: Shadows | None,
    ) -> None:
        """Takes what `DataPlane` has."""
        self._calls, self._scheduler = calls, scheduler
        self._memory, self._shadows = memory, shadows

    def queue(
        self,
        request: PredictRequest,
        header: RequestHeader,
        route: Route,
        arrival: Arrival,
        *,
        arrived: float,
        trace: int,
    ) -> None:
        """Queues a call, or raises why it is refused.

        The message is rewritten unless compiled code reads it as it is.

        Args:
            arrived: when its message came, on the monotonic clock.
            trace: its number among traced calls; 0: it is not traced.
        """
        version, memory = route.version, RequestTensors(self._memory)
        call = read_call(request, header, route, arrival, arrived, trace)
        self._check_deadline(version, call)
        for name, span in header.places.items():
            memory.check(span, f"output {name!r}")
        reader = version.reader
        with self._calls.routes.reading(version) as call.route:
            message = request.message(reader, memory)

            def take(inputs: bytes, *, is_rewritten: bool) -> bool:
                kept = None
                if self._shadows is not None:
                    kept = self._shadows.kept(request.sent, version, header, memory)
                call.size_bytes = len(request.sent) + memory.bytes_read
                call.message, call.message_bytes = inputs, len(inputs)
                call.is_rewritten = is_rewritten
                call.kept, call.kept_bytes = kept, len(kept or b"")
                call.json_bytes = request.json_bytes
                queued, refused = self._calls.take_read(call, monotonic())
                if refused is not None:
                    version.metrics.refused(refused.reason)
                    raise refused.error
                return queued

            if take(message, is_rewritten=False):
                return
            usual = reader.rewritten(message, memory, arrival.method.format)
            if not take(usual, is_rewritten=True):
                raise InternalError("compiled code declined a request without an error")

    def _check_deadline(self, version: LoadedVersion, call: abi.ReadCall) -> None:
        # Under overload most calls are refused, so those are not rewritten.
        if (
            call.deadline != _FOREVER
            and self._scheduler.requests
            and self._scheduler.deadline_unreachable(
                version.queue, call.deadline, call.priority, call.arrived
            )
        ):
            version.metrics.refused("deadline")
            raise DeadlineError(_TOO_LATE)


def read_call(
    request: PredictRequest,
    header: RequestHeader,
    route: Route,
    arrival: Arrival,
    arrived: float,
    trace: int,
) -> abi.ReadCall:
    """A call without its route and message; raises RequestError for unknown outputs."""
    names = route.version.model.spec.tower.outputs
    positions = header.output_positions(names)
    form = FORMS[arrival.method]
    request_id, label = header.request_id.encode(), route.label.encode()
    places = [(at, header.places[names[at]]) for at in positions if names[at] in header.places]
    regions = [span.region.encode() for _, span in places]
    placed = (abi.PlacedOutput * len(places))(
        *(
            abi.PlacedOutput(
                at,
                ctypes.cast(ctypes.c_char_p(region), ctypes.c_void_p).value,
                len(region),
                span.offset,
                span.byte_size,
            )
            for (at, span), region in zip(places, regions, strict=True)
        )
    )
    call = abi.ReadCall(
        sender=abi.Sender.HTTP if form is abi.Form.JSON else abi.Sender.GRPC,
        number=arrival.number,
        form=form,
        encoding=ENCODINGS.index(arrival.encoding),
        priority=header.priority,
        arrived=arrived,
        deadline=_deadline(arrived, arrival.time_remaining, header.timeout_us),
        outputs=bytes(
            (1 + request.is_binary(name)) if at in positions else 0 for at, name in enumerate(names)
        ),
        reports_unknown=header.reports_unknown_ids,
        trace=trace,
        id=request_id,
        id_bytes=len(request_id),
        label=label,
        label_bytes=len(label),
        key=header.routing_key,
        key_bytes=len(header.routing_key),
        placed=ctypes.addressof(placed),
        placed_count=len(places),
    )
    # Referenced until compiled code has copied them.
    call.places = regions, placed
    return call


def _deadline(arrived: float, time_remaining: float | None, timeout_us: int) -> float:
    deadline = _FOREVER if time_remaining is None else arrived + time_remaining
    return min(deadline, arrived + timeout_us / 1e6) if timeout_us else deadline
