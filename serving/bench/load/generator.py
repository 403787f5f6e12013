"""A compiled (`native/`), single-threaded generator of unary gRPC calls. Needs libnghttp2.

gRPC's Python client reaches a few thousand calls a second on a core, less than measured servers.
"""

import ctypes
import math
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from serving.bench.load.bounds import check_count, check_not_negative, check_positive
from serving.bench.load.library import (
    CALL,
    LIBRARY,
    LINK,
    LoadReport,
    LoadSettings,
    load_generator_refusal,
)
from serving.bench.load.result import CODE_NAMES, LoadResult
from serving.bench.load.schedule import checked_schedule
from serving.bench.load.target import Target

_CONNECT_SECONDS = 5.0
# Of compiled code in one step; between steps Python handles signals such as Ctrl-C.
_STEP_SECONDS = 0.2
_ERROR_BYTES = 256


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
    """Keep a number of calls open: the next call begins when one ends.

    Args:
        messages: serialized requests, sent in turn.
        connections: TCP connections; each call goes to the one with the fewest open calls.
        concurrency: open calls, over all connections.
        seconds: time in which calls begin, after the warm-up.
        deadline_seconds: sent to the server; an expired call is DEADLINE_EXCEEDED.
        warm_up_seconds: calls begun in this time are not part of the result.
        max_calls: the most calls to begin, warm-up included.
        drain_seconds: wait for answers at the end; calls that are still open are CANCELLED.
        keep_responses: keep the first response to each message.

    Returns:
        Outcomes of all calls. Calls on a lost connection are UNAVAILABLE, but calls that the server
        says it did not process are sent again. Calls without a connection for a second are
        UNAVAILABLE too.

    Raises:
        InputError: an argument is outside its range, the server does not answer, libnghttp2 is not
            installed, or the load generator was not built.
    """
    check_count("concurrency", concurrency)
    check_positive("seconds", seconds)
    check_not_negative("warm_up_seconds", warm_up_seconds)
    if max_calls is not None:
        check_count("max_calls", max_calls)
    settings = LoadSettings(
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
    """Begin every call at its scheduled time, independent of earlier calls.

    Latencies count from the scheduled time, so a stalled server is charged for all calls that were
    due meanwhile. They include waits for a connection, a stream or flow control.

    Args:
        schedule: float64 `[N]`, seconds from the start, ascending.
        deadline_seconds: from a call's scheduled time. The server gets the remaining time; an
            expired call is reset and DEADLINE_EXCEEDED.
        drain_seconds: wait for answers after the last call; calls that are still open are
            CANCELLED.

    The other arguments, the result and the errors are those of `run_closed`, with an InputError
    also for times that are not ascending float64.
    """
    times = checked_schedule(schedule)
    settings = LoadSettings(schedule=times.ctypes.data, call_count=len(times))
    _set_limits(settings, connections, deadline_seconds, drain_seconds, keep_responses)
    outcome = _run(target, messages, settings)
    last = float(times[-1]) if len(times) else 0.0
    return _result(outcome, start=0.0, window_seconds=last if last > 0 else outcome.seconds)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Arrays that the compiled code fills: `[N]` of `CALL`, and `[connections]` of `LINK`."""

    calls: NDArray[np.void]
    links: NDArray[np.void]
    began: float
    seconds: float
    responses: dict[int, bytes]
    errors: dict[int, str]
    cpu_share: float


def _run(target: Target, messages: Sequence[bytes], settings: LoadSettings) -> _Outcome:
    reason = load_generator_refusal()
    if reason is not None or LIBRARY is None:
        raise InputError(reason or "the load generator is not there")
    if not messages:
        raise InputError("messages: expected at least one, got none")
    # The compiled code refers to these bytes until the end of this function.
    framed = [struct.pack(">BI", 0, len(message)) + message for message in messages]
    offsets = np.concatenate(([0], np.cumsum([len(m) for m in framed]))).astype(np.int64)
    address, port = _numeric_address(target)
    settings.address, settings.port = address.encode(), port.encode()
    settings.authority, settings.path = target.authority.encode(), target.path.encode()
    settings.user_agent = b"sharded-infer-bench"
    if target.token is not None:
        settings.authorization = f"Bearer {target.token}".encode()
    settings.messages, settings.offsets = b"".join(framed), offsets.ctypes.data
    settings.message_count = len(framed)
    settings.connect_seconds = _CONNECT_SECONDS
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    handle = LIBRARY.sharded_infer_load_create(settings, error)
    if not handle:
        raise InputError(f"{target.authority}: {_text(error.value)}")
    try:
        while (state := LIBRARY.sharded_infer_load_step(handle, _STEP_SECONDS, error)) == 0:
            pass
        if state < 0:
            raise InputError(
                f"{target.authority}: no HTTP/2 connection without TLS: {_text(error.value)}"
            )
        ended = time.monotonic()
        cpu_share = (time.thread_time() - cpu_begin) / (time.perf_counter() - begin)
        report = LoadReport()
        LIBRARY.sharded_infer_load_report(handle, report)
        return _Outcome(
            calls=_copy(report.calls, report.call_count, CALL),
            links=_copy(report.links, settings.connections, LINK),
            began=ended - report.seconds,
            seconds=report.seconds,
            responses=_responses(LIBRARY, handle, len(framed)),
            errors=_errors(LIBRARY, handle),
            cpu_share=cpu_share,
        )
    finally:
        LIBRARY.sharded_infer_load_destroy(handle)


def _result(outcome: _Outcome, *, start: float, window_seconds: float) -> LoadResult:
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
        began=outcome.began + start,
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
    texts = {code: library.sharded_infer_load_error(handle, code) for code in CODE_NAMES}
    return {code: unquote(_text(text)) for code, text in texts.items() if text}


def _text(text: bytes) -> str:
    return text.decode(errors="replace")


def _numeric_address(target: Target) -> tuple[str, str]:
    try:
        with socket.create_connection((target.host, target.port), _CONNECT_SECONDS) as connection:
            numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            return socket.getnameinfo(connection.getpeername(), numeric)
    except (OSError, OverflowError, UnicodeError) as error:
        raise InputError(f"{target.authority}: no connection: {error}") from error


def _set_limits(
    settings: LoadSettings,
    connections: int,
    deadline_seconds: float | None,
    drain_seconds: float,
    keep_responses: bool,
) -> None:
    check_count("connections", connections)
    if deadline_seconds is not None:
        check_positive("deadline_seconds", deadline_seconds)
    check_not_negative("drain_seconds", drain_seconds)
    settings.connections = connections
    settings.deadline_seconds = math.inf if deadline_seconds is None else deadline_seconds
    settings.drain_seconds = drain_seconds
    settings.keep_responses = keep_responses
