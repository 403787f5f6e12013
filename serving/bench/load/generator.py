"""A compiled (`native/`), single-threaded generator of unary gRPC calls. Needs libnghttp2.

gRPC's Python client reaches a few thousand calls a second on a core, less than measured servers.
"""

import ctypes
import math
import socket
import struct
import time
from collections.abc import Sequence
from types import ModuleType
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from kernels.errors import InputError
from serving.bench.load.library import load_generator_refusal
from serving.bench.load.result import CODE_NAMES, LoadResult
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
    deadline_seconds: float = math.inf,
    warm_up_seconds: float = 0.0,
    drain_seconds: float = 5.0,
    keep_responses: bool = True,
) -> LoadResult:
    """Keep a number of calls open: the next call begins when one ends.

    Calls begin for `seconds` after the warm-up, which is not part of the result. Each goes to the
    connection with the fewest open calls. Calls still open after the drain are CANCELLED. Calls on
    a lost connection, or without one for a second, are UNAVAILABLE; those that the server says it
    did not process are sent again.

    Raises InputError if the server does not answer, libnghttp2 is not installed, or the load
    generator was not built.

    Args:
        messages: serialized requests, at least one, sent in turn.
        concurrency: open calls, over all connections.
        deadline_seconds: sent to the server; an expired call is DEADLINE_EXCEEDED.
        keep_responses: keep the first response to each message.
    """
    return _run(
        target,
        messages,
        start=warm_up_seconds,
        window_seconds=seconds,
        call_count=-1,
        concurrency=concurrency,
        seconds=warm_up_seconds + seconds,
        connections=connections,
        deadline_seconds=deadline_seconds,
        drain_seconds=drain_seconds,
        keep_responses=keep_responses,
    )


def run_open(
    target: Target,
    messages: Sequence[bytes],
    *,
    connections: int,
    schedule: NDArray[np.float64],
    deadline_seconds: float = math.inf,
    drain_seconds: float = 5.0,
    keep_responses: bool = True,
) -> LoadResult:
    """Begin every call at its scheduled time, independent of earlier calls; else as `run_closed`.

    Latencies count from the scheduled time, so a stalled server is charged for all calls that were
    due meanwhile. They include waits for a connection, a stream or flow control. The deadline
    counts from it too, and the server gets the remaining time.

    Args:
        schedule: float64 `[N]`, seconds from the start, ascending.
    """
    return _run(
        target,
        messages,
        start=0.0,
        window_seconds=float(schedule[-1]) if len(schedule) else 0.0,
        schedule=schedule.ctypes.data,
        call_count=len(schedule),
        connections=connections,
        deadline_seconds=deadline_seconds,
        drain_seconds=drain_seconds,
        keep_responses=keep_responses,
    )


def constant_schedule(rate: float, seconds: float) -> NDArray[np.float64]:
    """Times at equal distances, float64 seconds from 0; InputError unless the rate is positive."""
    _check_rate(rate)
    return np.arange(math.ceil(rate * seconds), dtype=np.float64) / rate


def poisson_schedule(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Times of a Poisson process, float64 seconds; InputError unless the rate is positive.

    Given their number, the times are independent and uniform (Kingman, Poisson Processes, 2.4).
    """
    _check_rate(rate)
    generator = np.random.default_rng(seed)
    times = generator.uniform(0.0, seconds, size=generator.poisson(rate * seconds))
    times.sort()
    return times


def _check_rate(rate: float) -> None:
    if not 0 < rate < math.inf:
        raise InputError(f"rate: expected a finite number above 0, got {rate}")


def _run(
    target: Target,
    messages: Sequence[bytes],
    *,
    start: float,
    window_seconds: float,
    **options: float | None,
) -> LoadResult:
    """Generate a load; calls begun before `start` are not part of the result.

    `options` are fields of `Settings` of native/abi/load.h.
    """
    reason = load_generator_refusal()
    if reason is not None:
        raise InputError(reason)
    # Wheels have no library for it.
    from serving.bench.abi import load as abi

    settings = abi.Settings(**options)
    # The compiled code refers to these bytes until the end of this function.
    framed = [struct.pack(">BI", 0, len(message)) + message for message in messages]
    offsets = np.concatenate(([0], np.cumsum([len(m) for m in framed]))).astype(np.int64)
    address, port = _numeric_address(target)
    settings.address, settings.port = address.encode(), port.encode()
    settings.authority, settings.path = target.authority.encode(), target.path.encode()
    settings.user_agent = b"sharded-infer-bench"
    if target.token is not None:
        settings.authorization = f"Bearer {target.token}".encode()
    joined = np.frombuffer(b"".join(framed), np.uint8)
    settings.messages, settings.offsets = joined.ctypes.data, offsets.ctypes.data
    settings.message_count = len(framed)
    settings.connect_seconds = _CONNECT_SECONDS
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    begin, cpu_begin = time.perf_counter(), time.thread_time()
    handle = abi.load_create(settings, error)
    if not handle:
        raise InputError(f"{target.authority}: {_text(error.value)}")
    try:
        while (state := abi.load_step(handle, _STEP_SECONDS, error)) == 0:
            pass
        if state < 0:
            raise InputError(
                f"{target.authority}: no HTTP/2 connection without TLS: {_text(error.value)}"
            )
        ended = time.monotonic()
        cpu_share = (time.thread_time() - cpu_begin) / (time.perf_counter() - begin)
        report = abi.Report()
        abi.load_report(handle, report)
        calls = _copy(report.calls, report.call_count, abi.Call)
        links = _copy(report.links, settings.connections, abi.Link)
        return LoadResult.of(
            calls,
            start=start,
            began=ended - report.seconds,
            seconds=report.seconds,
            window_seconds=window_seconds or report.seconds,
            responses=_responses(abi, handle, len(framed)),
            errors=_errors(abi, handle),
            connection_calls=links["calls"].copy(),
            reconnects=links["reconnects"].copy(),
            cpu_share=cpu_share,
        )
    finally:
        abi.load_destroy(handle)


def _copy(address: int | None, count: int, structure: type[ctypes.Structure]) -> NDArray[np.void]:
    dtype: np.dtype[np.void] = np.dtype(structure)  # type: ignore[assignment]
    if not address or not count:
        return np.empty(0, dtype)
    return np.frombuffer(ctypes.string_at(address, count * dtype.itemsize), dtype)


def _responses(abi: ModuleType, handle: int, count: int) -> dict[int, bytes]:
    responses, length = {}, ctypes.c_int64()
    for index in range(count):
        data = abi.load_response(handle, index, ctypes.addressof(length))
        if data:
            responses[index] = ctypes.string_at(data, length.value)
    return responses


def _errors(abi: ModuleType, handle: int) -> dict[int, str]:
    texts = {code: abi.load_error(handle, code) for code in CODE_NAMES}
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
