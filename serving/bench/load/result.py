"""Outcomes of the calls of a load."""

from dataclasses import dataclass

import grpc
import numpy as np
from numpy.typing import NDArray

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
        seconds: from the start to the end of the last call.
        window_seconds: time in which calls began, to which rates refer.
        responses: by message index, the first response that was OK.
        errors: by gRPC status code, the first text that came with it, warm-up included.
        connection_calls: `[connections]`, calls on each and its replacements, warm-up included.
        cpu_share: of a core, by this thread, warm-up included. Near 1 the generator limits a
            closed loop. It also rises when calls follow too closely for sleep.
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
