"""Requests to checked model inputs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from serving.protocol.input_limits import InputLimits
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.native_reader import NativeReader
from serving.protocol.readers.portable_reader import PortableReader
from serving.protocol.readers.unknown_ids import Cells, UnknownIds
from serving.protocol.request_tensors import RequestTensors
from serving.protocol.wire_tensors import WireTensor
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.specs.model_spec import ModelSpec

Backend = Literal["native", "portable"]


class InputReader:
    """Reads a model's requests by compiled code, and by protobuf where that declines.

    Attributes:
        native: the compiled reader.
        reads_compiled: it reads the usual messages.
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
        self.reads_compiled = self.backend == "native"
        self._portable = PortableReader(
            spec, max_batch=max_batch, limits=limits, id_maps=id_maps, unknown_ids=unknown
        )
        self._limits = limits
        self._finite = None if limits is None else FiniteCheck(spec)

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
        found = self.native.read_message(message, form) if self.reads_compiled else None
        if found is None:
            found = self._portable.read_message(message, shared, form)
        if self._finite is not None:
            self._finite.check(found)
        return found

    def count_unknown(self, unknown: Iterable[tuple[str, int]]) -> None:
        """Counts ids unknown to shard hosts: tables and how many of each."""
        self._unknown.add(unknown)

    def read_body(self, body: bytes, json_bytes: int) -> ModelInput | None:
        """Reads an HTTP body whose header compiled code has read; raises RequestError.

        Returns None if its tensors have to be read separately.
        """
        found = self.native.read_body(body, json_bytes) if self.reads_compiled else None
        if found is not None and self._finite is not None:
            self._finite.check(found)
        return found

    def read_tensors(self, tensors: Sequence[WireTensor]) -> ModelInput:
        """Reads separate tensors; raises as `read_message`."""
        if self._limits is not None:
            self._limits.check_count(len(tensors))
        found = self.native.read_tensors(tensors) if self.reads_compiled else None
        if found is None:
            found = self._portable.read_tensors(tensors)
        if self._finite is not None:
            self._finite.check(found)
        return found
