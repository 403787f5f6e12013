"""Serialized requests to checked model inputs by compiled code, without protobuf's objects.

It accepts the raw form that clients send and nothing that the portable path would refuse; all else
is left to that path, which alone decides errors and their words. The pseudocode is in
`serving/native/request.h`.
"""

import ctypes
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.native_request import (
    BYTES_BYTES,
    LIBRARIES,
    TENSOR_BYTES,
    Model,
    Request,
)
from serving.wire_form import WireForm
from sharded_infer.batch import JaggedBatch, ModelInput
from sharded_infer.errors import InputError
from sharded_infer.request import LENGTHS, VALUES, WEIGHTS
from sharded_infer.sparse_inputs import SparseInputs
from sharded_infer.spec import ModelSpec, TableSpec

# `Policy` of serving/native/model.h.
_POLICIES = {"error": 0, "ignore": 1, "modulo": 2}
# Clients choose which features a request shares: few patterns occur, and the bound keeps a
# hostile one from filling memory with them.
_MAX_PATTERNS = 64
# Below, about a millisecond of reading, keeping the GIL is cheaper for all: a thread that gives it
# away beside a busy one waits 5 ms for it.
_LONG_BYTES = 1 << 24

Ints = NDArray[np.int64]


class _Scratch(NamedTuple):
    """Memory of one decoding at a time."""

    address: int  # of the request
    layout: memoryview
    own: memoryview
    request: Request
    dense: Ints  # [2, dense]: where each begins, and its rows
    held: tuple[NDArray[np.generic], ...]


class MessageDecoder:
    """Reads the usual messages of one model; any number of threads at once."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        max_batch: int,
        max_ids: int | None = None,
        form: WireForm = WireForm.INFER,
    ) -> None:
        """Prepares what does not depend on the request.

        Args:
            spec: the model.
            max_batch: the largest batch to accept.
            max_ids: ids to accept, of all tables that look them up; None is no limit.
            form: of the messages.

        Raises:
            InputError: the reader was not compiled.
        """
        if LIBRARIES is None:
            raise InputError("the package was built without a compiler")
        self._libraries = [(library, _scan_of(library, form)) for library in LIBRARIES]
        features, sparse = spec.features, SparseInputs(spec)
        required_inputs = spec.required_inputs
        self._features = tuple(range(len(features)))
        self._sparse = len(sparse.names)
        self._widths = tuple(spec.dense.inputs.values())
        names = [f"{name}{end}" for name in sparse.names for end in ("", ".lengths", ".weights")]
        names += [*spec.dense.inputs, VALUES, LENGTHS, WEIGHTS]
        encoded = [name.encode() for name in names]
        self._inputs = len(names)
        slots = 1 << (2 * self._inputs).bit_length()
        # Held, because the compiled code is given addresses.
        self._held = (
            np.array(sparse.of_features, np.int32),
            np.array([name in required_inputs for name in sparse.names], np.uint8),
            np.array([feature.table.rows for feature in features], np.int64),
            np.array([_POLICIES[feature.table.out_of_range] for feature in features], np.int32),
            np.array([_padding_of(feature.table) for feature in features], np.int64),
            np.array(self._widths, np.int64),
            np.cumsum([0, *map(len, encoded)], dtype=np.int64),
            np.full(slots, -1, np.int32),
        )
        sources, required, rows, policies, paddings, widths, starts, table = [
            address_of(array) for array in self._held
        ]
        self._model = Model(
            len(features),
            len(sparse.names),
            len(self._widths),
            max_batch,
            2**63 - 1 if max_ids is None else max_ids,
            max(sparse.copies),
            sources,
            required,
            rows,
            policies,
            paddings,
            widths,
            b"".join(encoded),
            starts,
            slots - 1,
            table,
        )
        LIBRARIES[1].sharded_infer_index_names(self._model)
        self._patterns: dict[bytes, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # As many as there were decodings at once.
        self._free: list[_Scratch] = []

    def decode(self, message: bytes) -> ModelInput | None:
        """Reads a serialized message.

        Returns:
            The batch, its ids checked; or None where the portable path has to decide.
        """
        library, scan = self._libraries[len(message) < _LONG_BYTES]
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = self._scratch()
        try:
            if not scan(scratch.address, message, len(message)):
                return None
            memory = np.empty(scratch.layout[1], np.int64)
            if not library.sharded_infer_fill(scratch.address, address_of(memory)):
                return None
            return self._input(scratch, memory)
        finally:
            self._free.append(scratch)

    def _input(self, scratch: _Scratch, memory: Ints) -> ModelInput:
        numbers = scratch.layout.tolist()
        floats = memory.view(np.float32)
        batch, _, outside, _, *groups = numbers
        if groups[7] == 0:
            found: tuple[JaggedBatch, ...] = (_group(self._features, groups, memory, floats),)
        else:
            own, shared = self._pattern(bytes(scratch.own))
            second = _group(shared, groups[7:], memory, floats)
            found = (_group(own, groups, memory, floats), second) if own else (second,)
        dense: tuple[NDArray[np.float32], ...] = ()
        if self._widths:
            starts, rows = scratch.dense.tolist()
            dense = tuple(
                floats[2 * at : 2 * at + count * width].reshape(count, width)
                for at, count, width in zip(starts, rows, self._widths, strict=True)
            )
        return ModelInput(batch, found, dense, True, outside)

    def _pattern(self, own: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Features of one bag a sample, and of one for all; the same tuples each time."""
        pattern = self._patterns.get(own)
        if pattern is None:
            pattern = (
                tuple(f for f in self._features if own[f]),
                tuple(f for f in self._features if not own[f]),
            )
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns[own] = pattern
        return pattern

    def _scratch(self) -> _Scratch:
        inputs, features = self._inputs, len(self._features)
        own = np.zeros(features, np.uint8)
        dense = np.zeros((2, len(self._widths)), np.int64)
        held = (
            np.zeros(inputs * TENSOR_BYTES, np.uint8),
            np.zeros(inputs, np.uint8),
            np.zeros(inputs, np.int32),
            np.zeros(inputs * BYTES_BYTES, np.uint8),
            np.full(inputs + 1, -1, np.int32),
            own,
            np.zeros(self._sparse, np.int64),
            dense[0],
            dense[1],
        )
        request = Request(ctypes.addressof(self._model), *[address_of(array) for array in held])
        layout = memoryview(request.layout).cast("B").cast("q")
        return _Scratch(
            ctypes.addressof(request), layout, memoryview(own.data), request, dense, held
        )


def _padding_of(table: TableSpec) -> int:
    return -1 if table.padding_idx is None else table.padding_idx


def _scan_of(library: ctypes.CDLL, form: WireForm) -> Any:
    predicts = form is WireForm.PREDICT
    return library.sharded_infer_scan_predict if predicts else library.sharded_infer_scan


def _group(
    features: tuple[int, ...], numbers: list[int], memory: Ints, floats: NDArray[np.float32]
) -> JaggedBatch:
    """One group of `Layout`: its numbers come first."""
    _, bags, ids, weighted, lengths, values, weights = numbers[:7]
    return JaggedBatch.trusted(
        features,
        memory[values : values + ids],
        memory[lengths : lengths + len(features) * bags].reshape(len(features), bags),
        floats[2 * weights : 2 * weights + ids] if weighted else None,
    )
