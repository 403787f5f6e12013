"""Requests for marked rows, from clients of several fronts, and their outcomes."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2_grpc

from tests.support.marked_rows import MODEL, MarkedInputs, marked_inputs, marked_rows
from tests.support.servers import infer_request, scores_of
from tests.support.waiting import in_threads, until

_BATCH = 5
_PAUSE_SECONDS = 0.005
# Clients soon find a front that is back.
_OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    *((f"grpc.{name}_reconnect_backoff_ms", 100) for name in ("initial", "min", "max")),
]


@dataclass(slots=True)
class MarkedTraffic:
    """Outcomes of the requests so far; versions and losses (of connections) are counts.

    `wrong` answers differ from the version they name. Repeats followed the loss of a connection.
    """

    seconds: list[float] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    versions: Counter[int] = field(default_factory=Counter)
    repeats: int = 0
    losses: Counter[str] = field(default_factory=Counter)

    def go_on(self, more: int = 50) -> None:
        """Wait until more requests are over."""
        asked = len(self.seconds)
        until(lambda: len(self.seconds) > asked + more, "requests go on")

    def answered_share(self) -> float:
        return 1 - len(self.errors) / len(self.seconds)


@contextmanager
def marked_traffic(
    addresses: Sequence[str],
    clients: int = 4,
    *,
    deadline: float = 30.0,
    expected: Callable[[MarkedInputs, int], NDArray[np.float32]] = marked_rows,
) -> Iterator[MarkedTraffic]:
    """Send requests from several clients without end, each with a deadline in seconds.

    When a client loses its front, it sends the request to the next, within the request's deadline.
    Answered requests are never sent again. `expected` computes the answer of a version.
    """
    seen, stop = MarkedTraffic(), threading.Event()

    def run(number: int) -> None:
        generator = np.random.default_rng(number)
        with ExitStack() as stack:
            channels = [grpc.insecure_channel(one, options=_OPTIONS) for one in addresses]
            stubs = [
                service_pb2_grpc.GRPCInferenceServiceStub(stack.enter_context(one))
                for one in channels
            ]
            at = number % len(stubs)
            while not stop.wait(_PAUSE_SECONDS):
                inputs = marked_inputs(_BATCH, generator)
                request = infer_request(inputs, model=MODEL)
                began = time.monotonic()
                for sent in count():
                    try:
                        left = max(0.0, began + deadline - time.monotonic())
                        response = stubs[at].ModelInfer(request, timeout=left)
                    except grpc.RpcError as error:
                        if _is_lost(error) and not stop.wait(_PAUSE_SECONDS):
                            seen.losses[error.details()] += 1
                            at = (at + 1) % len(stubs)
                            continue
                        seen.errors.append((error.code().name, error.details()))
                    else:
                        version = int(response.model_version)
                        seen.versions[version] += 1
                        found = scores_of(response)["rows"]
                        if not np.array_equal(found, expected(inputs, version)):
                            seen.wrong.append(f"version {version}: {found}")
                    seen.repeats += sent
                    seen.seconds.append(time.monotonic() - began)
                    break

    with in_threads(clients, run, stop):
        yield seen


def _is_lost(error: grpc.RpcError) -> bool:
    """True if gRPC's client lost its front; a front's own message names the host."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and "shard host" not in error.details()
