"""Outcomes of the calls of a load."""

from dataclasses import dataclass
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray

# A call; times are seconds from the start.
CALL = np.dtype(
    [
        ("scheduled", np.float64),
        ("taken", np.float64),
        ("sent", np.float64),
        ("latency", np.float64),
        ("message", np.int32),
        ("response_bytes", np.int32),
        ("code", np.uint8),
    ]
)
CODE_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Outcomes of N calls, in the order in which they were due.

    Times are seconds from the start, when every connection was ready.

    Attributes:
        scheduled: `[N]`, due times; in a closed loop, beginnings.
        sent: `[N]`, when a connection took the call; NaN if none did.
        latency: `[N]`, from `scheduled` until the answer ended or the call was given up.
        lag: `[N]`, from `scheduled` until the generator handled the call, without connecting.
        began: the start, seconds of the monotonic clock.
        window_seconds: time in which calls began, to which rates refer.
        errors: by gRPC status code, the first text that came with it, warm-up included.
        connection_calls: `[connections]`, calls on each and its replacements, warm-up included.
        cpu_share: of a core. Near 1 the generator limits a closed loop.
    """

    scheduled: NDArray[np.float64]
    sent: NDArray[np.float64]
    latency: NDArray[np.float64]
    lag: NDArray[np.float64]
    codes: NDArray[np.uint8]
    message_index: NDArray[np.int32]
    response_bytes: NDArray[np.int32]
    began: float
    seconds: float
    window_seconds: float
    ok_in_window: int
    responses: dict[int, bytes]
    errors: dict[int, str]
    connection_calls: NDArray[np.int64]
    reconnects: NDArray[np.int64]
    cpu_share: float

    @classmethod
    def of(
        cls,
        calls: NDArray[np.void],
        *,
        start: float,
        began: float,
        seconds: float,
        window_seconds: float,
        **others: Any,
    ) -> Self:
        """Outcomes of all calls, with the fields of `CALL`, without those begun before `start`."""
        ends = calls["scheduled"] + calls["latency"] - start
        in_window = (calls["code"] == 0) & (ends >= 0) & (ends <= window_seconds)
        calls = calls[calls["scheduled"] >= start]
        return cls(
            scheduled=calls["scheduled"] - start,
            sent=calls["sent"] - start,
            latency=calls["latency"].copy(),
            lag=calls["taken"] - calls["scheduled"],
            codes=calls["code"].copy(),
            message_index=calls["message"].copy(),
            response_bytes=calls["response_bytes"].copy(),
            began=began + start,
            seconds=seconds - start,
            window_seconds=window_seconds,
            ok_in_window=int(np.count_nonzero(in_window)),
            **others,
        )  # fmt: skip

    @property
    def counts(self) -> dict[str, int]:
        """Calls by the name of their status code, without codes that did not occur."""
        codes, counts = np.unique(self.codes, return_counts=True)
        return {
            CODE_NAMES[int(code)]: int(count) for code, count in zip(codes, counts, strict=True)
        }

    @property
    def ok_per_second(self) -> float:
        """Calls answered OK a second, in the window."""
        return self.ok_in_window / self.window_seconds if self.window_seconds > 0 else 0.0

    @property
    def p99_lag_seconds(self) -> float:
        """99th percentile of the generator's delay of a call."""
        return float(np.quantile(self.lag, 0.99)) if len(self.lag) else 0.0
