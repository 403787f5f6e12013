"""Batches of predict calls, as compiled code describes them."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import array_at, memory_at
from serving.abi import calls as abi
from serving.abi.scheduler import State
from serving.host.thread_usage import Reading
from serving.inference.routes import Routes
from serving.protocol.predict_method import PredictMethod
from serving.shared_memory.regions import Span
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.inputs.model_input import ModelInput

_METHODS = {
    abi.Form.INFER: PredictMethod.MODEL_INFER,
    abi.Form.PREDICT: PredictMethod.PREDICT,
    abi.Form.STREAM: PredictMethod.MODEL_STREAM_INFER,
    abi.Form.JSON: PredictMethod.HTTP_INFER,
}
FORMS = {method: form for form, method in _METHODS.items()}
FORMS[PredictMethod.HTTP_INFER_VERSION] = abi.Form.JSON


@dataclass(frozen=True, slots=True)
class CallFacts:
    """One call of a batch. Times are monotonic.

    Attributes:
        trace: 0: it is not traced.
        first: its first sample in the batch.
        work: units of its work (`BatchWork`).
        ahead: calls that waited when it came.
        message: as received, if it is kept; else empty.
        json_bytes: length of its JSON, which tensors in binary follow; None: all of it.
        places: outputs that go to shared memory, by position.
    """

    number: int
    method: PredictMethod
    trace: int
    first: int
    samples: int
    work: int
    ahead: int
    arrived: float
    deadline: float
    decoded: float
    request_id: str
    message: bytes
    json_bytes: int | None
    places: tuple[tuple[int, Span], ...]


class CallBatch:
    """Calls of one version that run together, or that left the queue for one reason.

    Attributes:
        usage: of its thread before the calls were merged, if that is reported.
    """

    __slots__ = ("address", "info", "usage", "version")

    def __init__(self, address: int, version: LoadedVersion) -> None:
        self.address, self.version = address, version
        self.info = abi.BatchInfo.from_address(address)
        self.usage: Reading | None = None

    @classmethod
    def at(cls, address: int, routes: Routes) -> "CallBatch":
        """The batch at an address."""
        return cls(address, routes.version(abi.BatchInfo.from_address(address).route))

    @property
    def count(self) -> int:
        """Number of its calls."""
        count: int = self.info.calls
        return count

    @property
    def state(self) -> State:
        """Running, or why its calls left the queue."""
        return State(self.info.state)

    def input(self) -> ModelInput:
        """The merged input, valid until the batch ends."""
        info, reader = self.info, self.version.reader.native
        layout, repeats = info.input.layout, None
        if layout.groups[1].features and self.count > 1:
            repeats = _numbers(info.sizes, self.count)
        return reader.assemble(info.input, _numbers(info.words, layout.words), repeats)

    def calls(self) -> Iterator[CallFacts]:
        """Facts of the calls, in the order of their samples."""
        first = 0
        for position in range(self.count):
            facts = self._facts(position, first)
            yield facts
            first += facts.samples

    def _facts(self, position: int, first: int) -> CallFacts:
        info = abi.CallInfo()
        abi.calls_describe(self.address, position, info)
        return CallFacts(
            info.number,
            _METHODS[info.form],
            info.trace,
            first,
            info.samples,
            info.work,
            info.ahead,
            info.arrived,
            info.deadline,
            info.decoded,
            ctypes.string_at(info.id, info.id_bytes).decode(),
            ctypes.string_at(info.message, info.message_bytes),
            info.json_bytes or None,
            tuple(
                (
                    placed.output,
                    Span(
                        ctypes.string_at(placed.region, placed.region_bytes).decode(),
                        placed.offset,
                        placed.byte_size,
                    ),
                )
                for placed in array_at(abi.PlacedOutput, info.placed, info.placed_count)
            ),
        )


def _numbers(address: int, count: int) -> NDArray[np.int64]:
    return np.frombuffer(memory_at(address, count * 8), np.int64)
