"""A shard host's server over the compiled transport."""

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from kernels.wording import counted
from serving.abi.transport import EventKind
from serving.config.server_config import ServerConfig
from serving.grpc_api.compiled.compressed_messages import plain_message
from serving.grpc_api.compiled.settings import limits_of
from serving.host.cores import slots_of
from serving.host.listeners import listen_on
from serving.metrics.server_metrics import ServerMetrics
from serving.observability.request_timeline import RequestTimeline
from serving.protocol.lookups.lookup_messages import DESCRIBE_PATH, LOOKUP_PATH, SHARD_HOST_SERVICE
from serving.protocol.predict_method import PredictMethod
from serving.security.access import access_of
from serving.security.guard import Guard
from serving.security.tls import WatchedFiles, tls_files
from serving.shard_host.compiled_lookups import CompiledLookups
from serving.shard_host.lookup_counts import LookupCounter
from serving.shard_host.lookup_service import LookupService
from serving.status import Status, StatusCode, status_of
from serving.transport.events import Event, EventReader
from serving.transport.http2_server import Http2Server
from serving.transport.limits import ACCESS_BITS, Method
from serving.transport.reports import TransportReports
from sharded_infer.errors import NotFoundError

if TYPE_CHECKING:
    from serving.observability.tracer import Tracer

_HEALTH_PATH = "/grpc.health.v1.Health/Check"
_STATUS = health_pb2.HealthCheckResponse
_LATE = Status(StatusCode.DEADLINE_EXCEEDED, "the deadline passed before the lookup began")
_POLL_MS = 1000
_CERTIFICATE_SECONDS = 1.0
_log = logging.getLogger("sharded_infer")


class LookupServer:
    """Answers lookups on one address, with a thread for each core."""

    def __init__(
        self,
        config: ServerConfig,
        service: LookupService,
        compiled: CompiledLookups,
        guard: Guard | None,
        counter: LookupCounter,
        metrics: ServerMetrics,
        tracer: "Tracer | None" = None,
    ) -> None:
        """Prepare the threads.

        Args:
            service: answers lookups that compiled code leaves to Python.
            guard: None admits every call.
            counter: counts refused lookups.
            metrics: count dropped connections.
            tracer: of lookups whose fronts trace them.
        """
        self._config, self._compiled, self._guard = config, compiled, guard
        self._counter, self._tracer = counter, tracer
        self._reports = TransportReports(counter.refused, metrics.grpc_dropped)
        self._answers: Mapping[str, Callable[[bytes], bytes]] = {
            LOOKUP_PATH: service.look_up,
            DESCRIBE_PATH: service.describe,
            _HEALTH_PATH: _health_of_unknown,
        }
        self._methods = [
            Method(
                path,
                access=ACCESS_BITS[access_of(path)],
                with_headers=tracer is not None and path == LOOKUP_PATH,
            )
            for path in self._answers
        ]
        self._behaviours = list(self._answers.values())
        self._server: Http2Server | None = None
        self._certificates: WatchedFiles[ssl.SSLContext] | None = None
        self._next_look = 0.0
        self._threads = [
            threading.Thread(target=self._serve, name=f"lookup-{n}", daemon=True)
            for n in range(config.slots or slots_of(1))
        ]

    @property
    def thread_count(self) -> int:
        """Number of lookups that run at once."""
        return len(self._threads)

    def listen(self, port: int) -> int:
        """Start to answer, and return the port (0: a free one); InputError if it cannot."""
        tls = tls_files(self._config)
        if tls is not None:
            self._certificates = WatchedFiles(tls, tls.server_context)
        listeners = listen_on(self._config.host, port)
        bound: int = listeners[0].getsockname()[1]
        self._server = Http2Server(
            listeners, self._methods, limits_of(self._config), tls=tls, guard=self._guard
        )
        self.show_health(False)
        for thread in self._threads:
            thread.start()
        return bound

    def show_health(self, is_serving: bool) -> None:
        """Set the answer to health probes."""
        if self._server is None:
            return
        status = _STATUS.SERVING if is_serving else _STATUS.NOT_SERVING
        answer = _STATUS(status=status).SerializeToString()
        method = list(self._answers).index(_HEALTH_PATH)
        for service in ("", SHARD_HOST_SERVICE):
            question = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            self._server.set_fixed_answer(method, question, answer)

    def stop(self, seconds: float) -> None:
        """Accept no calls; return when all are answered or `seconds` have passed."""
        if self._server is None:
            return
        end = monotonic() + seconds
        self._server.drain(seconds)
        for thread in self._threads:
            thread.join(max(0.1, end - monotonic()))
        self._server.stop()

    def _serve(self) -> None:
        server = self._server
        if server is None:
            return
        method = list(self._answers).index(LOOKUP_PATH)
        # A thread takes one call at a time: others are free for the next calls.
        reader = EventReader(
            lambda events, held, _, ms: self._compiled.fetch(
                server.address, method, events, held, ms
            )
        )
        while (events := reader.fetch(_POLL_MS)) is not None:
            for event in events:
                if event.kind is EventKind.CALL:
                    self._answer(server, event)
            self._reports.look(server.counters)
            self._look_at_certificates()

    def _answer(self, server: Http2Server, event: Event) -> None:
        began = monotonic()
        refusal: Status | None = None
        try:
            message = self._message_of(event)
            if isinstance(message, Status):
                refusal = message
            else:
                server.respond(event.call, self._behaviours[event.method](message))
        except Exception as error:
            # A bug of ours must not leave this call or later ones without an answer.
            refusal = status_of(error)
        is_lookup = self._methods[event.method].path == LOOKUP_PATH
        if refusal is not None:
            if is_lookup:
                self._counter.refused(refusal.code)
            server.finish(event.call, refusal)
        if is_lookup and self._tracer is not None:
            _trace(self._tracer, event, began, refusal)

    def _message_of(self, event: Event) -> bytes | Status:
        if event.seconds_left is not None and event.seconds_left <= 0:
            return _LATE
        return plain_message(event.message, event.encoding, self._config.max_message_bytes)

    def _look_at_certificates(self) -> None:
        if self._certificates is not None and monotonic() >= self._next_look:
            self._next_look = monotonic() + _CERTIFICATE_SECONDS
            self._certificates.look()


def _trace(tracer: "Tracer", event: Event, began: float, refusal: Status | None) -> None:
    trace = tracer.begin(event.metadata)
    if trace is not None:
        tracer.record(
            RequestTimeline(
                # The front's span has the model and the version.
                model="",
                version=0,
                request_id="",
                executor="",
                samples=0,
                started=began,
                whole_seconds=monotonic() - began,
                code=StatusCode.OK.name if refusal is None else refusal.code.name,
                error="" if refusal is None else refusal.message,
                method=PredictMethod.LOOKUP,
                trace=trace,
            )
        )


def _health_of_unknown(message: bytes) -> bytes:
    """Refuse a probe of an unknown service; the transport answers the others."""
    raise NotFoundError(f"no such service in a probe of {counted(len(message), 'byte')}")
