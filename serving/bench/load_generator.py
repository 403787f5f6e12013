"""Unary gRPC calls in great number, timed one by one, from a single thread.

gRPC's own Python client manages some thousands of calls a second on a core, less than the servers
to be measured. This one is compiled (`native/`), over libnghttp2, which must be installed where it
runs.
"""

import ctypes
import math
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import grpc
import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from kernels.native_library import load_library

_CONNECT_SECONDS = 5.0
# Of compiled code, after which Python handles signals such as Ctrl-C.
_STEP_SECONDS = 0.2
_ERROR_BYTES = 256
_LATE_SECONDS = 1e-3
_CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class Target:
    """A gRPC server's method, without TLS.

    Attributes:
        host: name or address.
        port: TCP port.
        path: of the method.
    """

    host: str
    port: int
    path: str = "/inference.GRPCInferenceService/ModelInfer"

    @property
    def authority(self) -> str:
        """Host and port as one word."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of N calls, in the order in which they were to begin.

    Times are seconds from the start, at which every connection was ready.

    Attributes:
        scheduled: float64 `[N]`, when each was to begin; in a closed loop, when it did.
        sent: float64 `[N]`, when it was given to a connection; NaN where that never happened.
        latency: float64 `[N]` seconds from `scheduled` to the end of the answer, or until the call
            was given up.
        lag: float64 `[N]` seconds from `scheduled` until this generator came to the call. Waiting
            for a connection comes after it, and is the server's affair.
        codes: uint8 `[N]`, gRPC status codes.
        message_index: int32 `[N]`, which message was sent.
        response_bytes: int32 `[N]`, length of the response message.
        seconds: from the start to the end of the last call.
        window_seconds: for how long calls were begun, the time that rates refer to.
        ok_in_window: calls answered OK within that time.
        responses: by message index, the first response that was OK.
        errors: by status code, the first text that came with it, warm-up included.
        connection_calls: int64 `[connections]`, calls that each carried; replacements count for
            what they replaced, and warm-up counts too.
        reconnects: int64 `[connections]`, how often each was replaced.
        cpu_share: of a core, by this thread, warm-up included; near 1 the generator is the limit
            of a closed loop. It also rises where calls follow so closely that it does not sleep.
    """

    scheduled: NDArray[np.float64]
    sent: NDArray[np.float64]
    latency: NDArray[np.float64]
    lag: NDArray[np.float64]
    codes: NDArray[np.uint8]
    message_index: NDArray[np.int32]
    response_bytes: NDArray[np.int32]
    seconds: float
    window_seconds: float
    ok_in_window: int
    responses: dict[int, bytes]
    errors: dict[int, str]
    connection_calls: NDArray[np.int64]
    reconnects: NDArray[np.int64]
    cpu_share: float

    @property
    def counts(self) -> dict[str, int]:
        """Calls by the name of their status code; only those that occurred."""
        codes, counts = np.unique(self.codes, return_counts=True)
        return {
            _CODE_NAMES[int(code)]: int(count) for code, count in zip(codes, counts, strict=True)
        }

    @property
    def ok_per_second(self) -> float:
        """Calls answered OK a second, while calls were begun."""
        return self.ok_in_window / self.window_seconds if self.window_seconds > 0 else 0.0

    @property
    def largest_lag_seconds(self) -> float:
        """The longest that this generator took to come to a call."""
        return float(self.lag.max(initial=0.0))

    @property
    def p99_lag_seconds(self) -> float:
        """The time within which this generator came to 99% of the calls."""
        return float(np.quantile(self.lag, 0.99)) if len(self.lag) else 0.0

    @property
    def on_time(self) -> bool:
        """Whether this generator kept up: it came to 99% of the calls within a millisecond."""
        return self.p99_lag_seconds <= _LATE_SECONDS


class _Settings(ctypes.Structure):
    """`Settings` of native/call.h."""

    _fields_ = (
        ("address", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        ("authority", ctypes.c_char_p),
        ("path", ctypes.c_char_p),
        ("user_agent", ctypes.c_char_p),
        ("messages", ctypes.c_char_p),
        ("offsets", ctypes.c_void_p),
        ("message_count", ctypes.c_int64),
        ("schedule", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("concurrency", ctypes.c_int64),
        ("seconds", ctypes.c_double),
        ("deadline_seconds", ctypes.c_double),
        ("drain_seconds", ctypes.c_double),
        ("connect_seconds", ctypes.c_double),
        ("connections", ctypes.c_int64),
        ("keep_responses", ctypes.c_int32),
    )


class _Report(ctypes.Structure):
    """`Report` of native/call.h."""

    _fields_ = (
        ("calls", ctypes.c_void_p),
        ("call_count", ctypes.c_int64),
        ("links", ctypes.c_void_p),
        ("seconds", ctypes.c_double),
    )


# `Call` and `Link` of native/call.h.
_CALL = np.dtype(
    [
        ("scheduled", np.float64),
        ("taken", np.float64),
        ("sent", np.float64),
        ("latency", np.float64),
        ("message", np.int32),
        ("response_bytes", np.int32),
        ("slot", np.int32),
        ("code", np.uint8),
        ("refusals", np.uint8),
        ("done", np.uint8),
    ],
    align=True,
)
_LINK = np.dtype([("calls", np.int64), ("reconnects", np.int64)])


def _load() -> ctypes.CDLL | None:
    library = load_library(Path(__file__).parent)
    if library is not None:
        library.sharded_infer_load_create.restype = ctypes.c_void_p
        library.sharded_infer_load_create.argtypes = (ctypes.POINTER(_Settings), ctypes.c_char_p)
        library.sharded_infer_load_step.restype = ctypes.c_int32
        library.sharded_infer_load_step.argtypes = (
            ctypes.c_void_p,
            ctypes.c_double,
            ctypes.c_char_p,
        )
        library.sharded_infer_load_report.restype = None
        library.sharded_infer_load_report.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Report))
        library.sharded_infer_load_response.restype = ctypes.c_void_p
        library.sharded_infer_load_response.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.POINTER(ctypes.c_int64),
        )
        library.sharded_infer_load_error.restype = ctypes.c_char_p
        library.sharded_infer_load_error.argtypes = (ctypes.c_void_p, ctypes.c_int32)
        library.sharded_infer_load_destroy.restype = None
        library.sharded_infer_load_destroy.argtypes = (ctypes.c_void_p,)
    return library


_LIBRARY = _load()


def load_generator_refusal() -> str | None:
    """Why no load can be made on this machine, or None when it can."""
    if _LIBRARY is None:
        return "the load generator is compiled code, and the package was built without a compiler"
    try:
        ctypes.CDLL("libnghttp2.so.14")
    except OSError:
        return "the load generator needs libnghttp2.so.14: apt install libnghttp2-14"
    return None


def constant_schedule(rate: float, seconds: float) -> NDArray[np.float64]:
    """Times at equal distances.

    Args:
        rate: calls a second.
        seconds: how long.

    Returns:
        float64 `[rate * seconds]`, seconds from the start, the first at 0.

    Raises:
        InputError: the rate or the time is not positive.
    """
    _check_positive("rate", rate)
    _check_positive("seconds", seconds)
    return np.arange(math.ceil(rate * seconds), dtype=np.float64) / rate


def poisson_schedule(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Times of independent callers: a Poisson process.

    Its number of calls is drawn from its Poisson distribution, and given that number the times are
    independent and uniform (Kingman, Poisson Processes, section 2.4).

    Args:
        rate: calls a second, in the mean.
        seconds: how long.
        seed: of the draw.

    Returns:
        float64 `[N]`, seconds from the start, ascending, below `seconds`.

    Raises:
        InputError: the rate or the time is not positive.
    """
    _check_positive("rate", rate)
    _check_positive("seconds", seconds)
    generator = np.random.default_rng(seed)
    times = generator.uniform(0.0, seconds, size=generator.poisson(rate * seconds))
    times.sort()
    return times


def run_closed(
    target: Target,
    messages: Sequence[bytes],
    *,
    connections: int,
    concurrency: int,
    seconds: float,
    deadline_seconds: float | None = None,
    warm_up_seconds: float = 0.0,
    max_calls: int | None = None,
    drain_seconds: float = 5.0,
    keep_responses: bool = True,
) -> LoadResult:
    """Keeps a number of calls open: as one is over, the next begins.

    Args:
        target: what to call.
        messages: serialized requests, sent in turn.
        connections: TCP connections; each call goes to the one with the fewest open calls.
        concurrency: open calls, over all connections.
        seconds: for how long to begin calls, after the warm-up.
        deadline_seconds: a call's, told to the server; unanswered by then it is DEADLINE_EXCEEDED.
        warm_up_seconds: calls begun in this time are not part of the result.
        max_calls: the most calls to begin, warm-up included; None for no limit.
        drain_seconds: for how long to wait for answers at the end; calls open after that are
            given up as CANCELLED.
        keep_responses: whether to keep the first response to each message.

    Returns:
        Every call and its outcome; a failed call is part of it. Calls on a lost connection are
        UNAVAILABLE, unless the server said that it did not process them: those are sent again. So
        are calls that find no connection for a second.

    Raises:
        InputError: an argument is outside its range, there is no server, libnghttp2 is not
            installed, or the package was built without a compiler.
    """
    _check_count("concurrency", concurrency)
    _check_positive("seconds", seconds)
    _check_not_negative("warm_up_seconds", warm_up_seconds)
    if max_calls is not None:
        _check_count("max_calls", max_calls)
    settings = _Settings(
        schedule=None,
        call_count=-1 if max_calls is None else max_calls,
        concurrency=concurrency,
        seconds=warm_up_seconds + seconds,
    )
    _set_limits(settings, connections, deadline_seconds, drain_seconds, keep_responses)
    outcome = _run(target, messages, settings)
    if len(outcome.calls) == max_calls:
        last_end = float((outcome.calls["scheduled"] + outcome.calls["latency"]).max())
        seconds = max(last_end - warm_up_seconds, 0.0)
    return _result(outcome, start=warm_up_seconds, window_seconds=seconds)


def run_open(
    target: Target,
    messages: Sequence[bytes],
    *,
    connections: int,
    schedule: NDArray[np.float64],
    deadline_seconds: float | None = None,
    drain_seconds: float = 5.0,
    keep_responses: bool = True,
) -> LoadResult:
    """Begins every call at its time, whatever became of those before it.

    Latencies count from the scheduled time, so that a server that stalls is charged for all the
    calls that would have come meanwhile. Time that a call waits for a connection, a stream or flow
    control counts too.

    Args:
        target: what to call.
        messages: serialized requests, sent in turn.
        connections: TCP connections; each call goes to the one with the fewest open calls.
        schedule: float64 `[N]`, seconds from the start, ascending.
        deadline_seconds: a call's, from its scheduled time, of which the server is told what is
            left; unanswered by then it is reset and DEADLINE_EXCEEDED.
        drain_seconds: for how long to wait for answers after the last call; calls open after that
            are given up as CANCELLED.
        keep_responses: whether to keep the first response to each message.

    Returns:
        As of `run_closed`.

    Raises:
        InputError: as of `run_closed`; or the times are no ascending float64.
    """
    times = _checked_schedule(schedule)
    settings = _Settings(schedule=times.ctypes.data, call_count=len(times))
    _set_limits(settings, connections, deadline_seconds, drain_seconds, keep_responses)
    outcome = _run(target, messages, settings)
    last = float(times[-1]) if len(times) else 0.0
    return _result(outcome, start=0.0, window_seconds=last if last > 0 else outcome.seconds)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What the compiled code leaves: `[N]` of `_CALL`, and `[connections]` of `_LINK`."""

    calls: NDArray[np.void]
    links: NDArray[np.void]
    seconds: float
    responses: dict[int, bytes]
    errors: dict[int, str]
    cpu_share: float


def _run(target: Target, messages: Sequence[bytes], settings: _Settings) -> _Outcome:
    reason = load_generator_refusal()
    if reason is not None or _LIBRARY is None:
        raise InputError(reason or "the load generator is not there")
    if not messages:
        raise InputError("messages: expected at least one, got none")
    # Referred to by the compiled code until the end of this function.
    framed = [struct.pack(">BI", 0, len(message)) + message for message in messages]
    offsets = np.concatenate(([0], np.cumsum([len(m) for m in framed]))).astype(np.int64)
    address, port = _numeric_address(target)
    settings.address, settings.port = address.encode(), port.encode()
    settings.authority, settings.path = target.authority.encode(), target.path.encode()
    settings.user_agent = b"sharded-infer-bench"
    settings.messages, settings.offsets = b"".join(framed), offsets.ctypes.data
    settings.message_count = len(framed)
    settings.connect_seconds = _CONNECT_SECONDS
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    handle = _LIBRARY.sharded_infer_load_create(settings, error)
    if not handle:
        raise InputError(f"{target.authority}: {_text(error.value)}")
    try:
        while (state := _LIBRARY.sharded_infer_load_step(handle, _STEP_SECONDS, error)) == 0:
            pass
        if state < 0:
            raise InputError(f"{target.authority}: no HTTP/2 connection: {_text(error.value)}")
        cpu_share = (time.thread_time() - cpu_begin) / (time.perf_counter() - begin)
        report = _Report()
        _LIBRARY.sharded_infer_load_report(handle, report)
        return _Outcome(
            calls=_copy(report.calls, report.call_count, _CALL),
            links=_copy(report.links, settings.connections, _LINK),
            seconds=report.seconds,
            responses=_responses(_LIBRARY, handle, len(framed)),
            errors=_errors(_LIBRARY, handle),
            cpu_share=cpu_share,
        )
    finally:
        _LIBRARY.sharded_infer_load_destroy(handle)


def _result(outcome: _Outcome, *, start: float, window_seconds: float) -> LoadResult:
    """The calls from a time on, times counted from there."""
    calls = outcome.calls
    ends = calls["scheduled"] + calls["latency"] - start
    in_window = (calls["code"] == 0) & (ends >= 0) & (ends <= window_seconds)
    calls = calls[calls["scheduled"] >= start]
    return LoadResult(
        scheduled=calls["scheduled"] - start,
        sent=calls["sent"] - start,
        latency=calls["latency"].copy(),
        lag=calls["taken"] - calls["scheduled"],
        codes=calls["code"].copy(),
        message_index=calls["message"].copy(),
        response_bytes=calls["response_bytes"].copy(),
        seconds=outcome.seconds - start,
        window_seconds=window_seconds,
        ok_in_window=int(np.count_nonzero(in_window)),
        responses=outcome.responses,
        errors=outcome.errors,
        connection_calls=outcome.links["calls"].copy(),
        reconnects=outcome.links["reconnects"].copy(),
        cpu_share=outcome.cpu_share,
    )


def _copy(address: int | None, count: int, dtype: np.dtype[np.void]) -> NDArray[np.void]:
    if not address or not count:
        return np.empty(0, dtype)
    return np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype)


def _responses(library: ctypes.CDLL, handle: int, count: int) -> dict[int, bytes]:
    responses, length = {}, ctypes.c_int64()
    for index in range(count):
        data = library.sharded_infer_load_response(handle, index, length)
        if data:
            responses[index] = ctypes.string_at(data, length.value)
    return responses


def _errors(library: ctypes.CDLL, handle: int) -> dict[int, str]:
    texts = {code: library.sharded_infer_load_error(handle, code) for code in _CODE_NAMES}
    return {code: unquote(_text(text)) for code, text in texts.items() if text}


def _text(text: bytes) -> str:
    return text.decode(errors="replace")


def _numeric_address(target: Target) -> tuple[str, str]:
    """The address and port at which somebody listens, in digits."""
    try:
        with socket.create_connection((target.host, target.port), _CONNECT_SECONDS) as connection:
            numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            return socket.getnameinfo(connection.getpeername(), numeric)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"{target.authority}: no connection: {error}") from error


def _set_limits(
    settings: _Settings,
    connections: int,
    deadline_seconds: float | None,
    drain_seconds: float,
    keep_responses: bool,
) -> None:
    _check_count("connections", connections)
    if deadline_seconds is not None:
        _check_positive("deadline_seconds", deadline_seconds)
    _check_not_negative("drain_seconds", drain_seconds)
    settings.connections = connections
    settings.deadline_seconds = math.inf if deadline_seconds is None else deadline_seconds
    settings.drain_seconds = drain_seconds
    settings.keep_responses = keep_responses


def _checked_schedule(schedule: NDArray[np.float64]) -> NDArray[np.float64]:
    if schedule.dtype != np.float64 or schedule.ndim != 1:
        raise InputError(
            f"schedule: expected float64 [N], got {schedule.dtype} {list(schedule.shape)}"
        )
    if not np.isfinite(schedule).all() or (schedule < 0).any() or (np.diff(schedule) < 0).any():
        raise InputError("schedule: expected ascending times of 0 or more")
    return np.ascontiguousarray(schedule)


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name}: expected at least 1, got {value}")


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise InputError(f"{name}: expected a finite number above 0, got {value}")


def _check_not_negative(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise InputError(f"{name}: expected a finite number of 0 or more, got {value}")
