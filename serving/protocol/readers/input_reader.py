"""Requests to checked model inputs."""

from collections.abc import Iterable, Mapping
from typing import Literal

from serving.protocol.input_limits import InputLimits
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.readers.unknown_ids import Cells, UnknownIds
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.specs.model_spec import ModelSpec

Backend = Literal["native", "portable"]


class InputReader:
    """Reads a model's requests by compiled code, and by protobuf where that declines.

    Attributes:
        native: the compiled reader.
        refuses_non_finite: requests with NaN or infinity are refused.
        mapped_tables: those whose unknown ids are counted.
        unknown_ids: float64 `[mapped tables]`, in the order of `spec.mapped_tables`: unknown raw
            ids in all requests so far.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        max_batch: int,
        backend: Backend | None = None,
        limits: InputLimits | None = None,
        id_maps: Mapping[str, RowMap] | None = None,
        unknown_ids: Cells | None = None,
    ) -> None:
        """Prepares the reader of a model.

        Args:
            backend: `portable` avoids compiled code.
            limits: None: there are none, and NaN and infinity are read.
            id_maps: by table; ids of others that need one are left raw.
            unknown_ids: the attribute, contiguous; None: zeros.
        """
        self.backend: Backend = backend or "native"
        self._unknown = unknown = UnknownIds(spec, unknown_ids)
        self.unknown_ids = unknown.cells
        self.mapped_tables = tuple(table.name for table in spec.mapped_tables)
        self.native = NativeReader(
            spec, max_batch=max_batch, limits=limits, id_maps=id_maps, unknown_ids=unknown
        )
        self._portable = PortableReader(
            spec, max_batch=max_batch, limits=limits, id_maps=id_maps, unknown_ids=unknown
        )
        self._limits = limits
        self._finite = None if limits is None else FiniteCheck(spec)
        self.refuses_non_finite = limits is not None and spec.serving.non_finite == "refuse"

    def read_message(
        self,
        message: bytes,
        shared: RequestTensors | None = None,
        form: MessageFormat = MessageFormat.INFER,
    ) -> ModelInput:
        """Reads a serialized message into a batch with checked ids.

        Args:
            shared: reads inputs in shared memory; None: they are refused.

        Raises:
            RequestError: the message or an input is malformed, an input does not fit the model, or
                an id is outside a table whose policy is `error`.
            NotFoundError: an input lies in a shared memory region that is not registered.
            RequestTooLargeError: more samples, ids or inputs than allowed.
        """
        found = self.native.read_message(message, form) if self.backend == "native" else None
        if found is None:
            found = self._portable.read_message(message, shared, form)
        if self._finite is not None:
            self._finite.check(found)
        return found

    def count_unknown(self, unknown: Iterable[tuple[str, int]]) -> None:
        """Counts ids unknown to shard hosts: tables and how many of each."""
        self._unknown.add(unknown)

    def rewritten(
        self, message: bytes, shared: RequestTensors, form: MessageFormat = MessageFormat.INFER
    ) -> bytes:
        """Rewrites the inputs of a message as a ModelInferRequest that compiled code reads.

        Raises as `read_message`.
        """
        found, usual = self._portable.rewritten(message, shared, form)
        if self._finite is not None:
            self._finite.check(found)
        return usual

    def check_count(self, inputs: int) -> None:
        """Raises RequestTooLargeError for more inputs than allowed."""
        if self._limits is not None:
            self._limits.check_count(inputs)
