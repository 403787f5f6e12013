"""Requests to checked model inputs by compiled code, without protobuf objects.

It accepts only the usual raw form, and nothing that the portable reader would refuse. The portable
reader takes the rest, and alone decides on errors. The pseudocode is in `native/reader/request.h`.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of
from serving.abi.reader import Group, Layout
from serving.protocol.message_format import MessageFormat
from serving.protocol.native_library import (
    BYTES_BYTES,
    LIBRARIES,
    TENSOR_BYTES,
    Model,
    Request,
    library_for,
)
from serving.protocol.readers.named_tensors import named_tensors
from serving.protocol.readers.native_id_maps import NativeIdMaps
from serving.protocol.readers.native_sequences import NativeSequences
from serving.protocol.readers.unknown_ids import UnknownIds
from serving.protocol.wire_tensors import WireTensor
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.inputs.request_reader import LENGTHS, VALUES, WEIGHTS
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import ModelSpec, TableSpec

# `Policy` of native/reader/model.h.
_POLICIES = {"error": 0, "ignore": 1, "modulo": 2}
# Clients choose which features a request shares: few patterns occur, and the bound keeps a hostile
# client from filling memory with them.
_MAX_PATTERNS = 64

Ints = NDArray[np.int64]


class _Scratch(NamedTuple):
    """Scratch memory of a call."""

    address: int  # of the request
    own: memoryview
    request: Request
    dense: Ints  # [2, dense]: where each begins, and its rows
    held: tuple[NDArray[np.generic], ...]


class NativeReader:
    """Reads the usual messages of a model. Thread-safe.

    Attributes:
        model: the model for compiled code; valid as long as the reader.
        features: their positions.
        widths: of the dense inputs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        max_batch: int,
        max_ids: int | None = None,
        id_maps: Mapping[str, RowMap] | None = None,
        unknown_ids: UnknownIds | None = None,
    ) -> None:
        """Prepares the reader of a model.

        Args:
            max_ids: counted for each table that looks them up; None: no limit.
            id_maps: by table; ids of others that need one are left raw.
            unknown_ids: where unknown ids are counted; None: nowhere that is seen.
        """
        features, sparse = spec.input_features, SparseInputs(spec)
        required_inputs = spec.required_inputs
        self.features = tuple(range(len(features)))
        self._sparse = len(sparse.names)
        self.widths = tuple(spec.dense.inputs.values())
        unweighted = spec.unweighted_inputs
        # An input without a name is left to the portable reader.
        names = [
            "" if end == ".weights" and name in unweighted else f"{name}{end}"
            for name in sparse.names
            for end in ("", ".lengths", ".weights")
        ]
        names += [*spec.dense.inputs, VALUES, LENGTHS, "" if unweighted else WEIGHTS]
        sequences = NativeSequences(spec, sparse.names, len(names))
        work = BatchWork(spec)
        names += sequences.names
        encoded = [name.encode() for name in names]
        self._inputs = len(names)
        slots = 1 << (2 * self._inputs).bit_length()
        # Referenced here, because compiled code has only addresses.
        self._id_maps = NativeIdMaps(spec, id_maps or {})
        self._unknown_ids = UnknownIds(spec) if unknown_ids is None else unknown_ids
        strings = {
            name: (hashed.number, seed) for name, (hashed, seed) in spec.string_inputs.items()
        }
        self._held = (
            np.array(sparse.of_features, np.int32),
            np.array([name in required_inputs for name in sparse.names], np.uint8),
            np.array([strings.get(name, (-1, 0))[0] for name in sparse.names], np.int32),
            np.array([strings.get(name, (-1, 0))[1] for name in sparse.names], np.uint64),
            np.array([feature.table.rows for feature in features], np.int64),
            np.array([_POLICIES[feature.table.out_of_range] for feature in features], np.int32),
            np.array([_padding_of(feature.table) for feature in features], np.int64),
            self._id_maps.of_features,
            self._unknown_ids.cells,
            np.array(self.widths, np.int64),
            np.cumsum([0, *map(len, encoded)], dtype=np.int64),
            np.full(slots, -1, np.int32),
            sequences.lengths,
            sequences.firsts,
            sequences.numbers,
            sequences.shortest,
            work.longest,
            work.computed_once.astype(np.uint8),
        )
        addresses = [address_of(array) for array in self._held]
        sources, required, hashes, seeds, rows, policies, paddings = addresses[:7]
        maps, unknown, widths, starts, table, lengths, firsts, numbers = addresses[7:15]
        shortest, longest, computed_once = addresses[15:]
        self.model = Model(
            len(features),
            len(sparse.names),
            len(self.widths),
            max_batch,
            2**63 - 1 if max_ids is None else max_ids,
            max(sparse.copies),
            sources,
            required,
            hashes,
            seeds,
            rows,
            policies,
            paddings,
            maps,
            len(spec.mapped_tables),
            unknown,
            widths,
            b"".join(encoded),
            starts,
            slots - 1,
            table,
            len(sequences.names),
            lengths,
            firsts,
            numbers,
            shortest,
            bool(spec.sequence_numbers),
            longest,
            computed_once,
            bool(spec.sequences),
        )
        LIBRARIES[1].sharded_infer_index_names(self.model)
        self._patterns: dict[bytes, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # As many as there were simultaneous calls.
        self._free: list[_Scratch] = []

    def read_message(
        self, message: bytes, form: MessageFormat = MessageFormat.INFER
    ) -> ModelInput | None:
        """Reads a serialized message; None if the portable reader has to decide."""
        library = library_for(len(message))
        predicts = form is MessageFormat.PREDICT
        scan = library.sharded_infer_scan_predict if predicts else library.sharded_infer_scan
        return self._read(library, scan, message, len(message))

    def read_body(self, body: bytes, json_bytes: int) -> ModelInput | None:
        """Reads JSON and the tensors behind it; None as in `read_message`."""
        library = library_for(len(body))
        return self._read(library, library.sharded_infer_scan_body, body, len(body), json_bytes)

    def read_tensors(self, tensors: Sequence[WireTensor]) -> ModelInput | None:
        """Reads separate tensors; None as in `read_message`."""
        named = named_tensors(tensors)
        if named is None:
            return None
        library = library_for(named.data_bytes)
        scan = library.sharded_infer_scan_tensors
        return self._read(library, scan, named.packed, len(tensors))

    def _read(
        self, library: ctypes.CDLL, scan: Callable[..., int], given: bytes, *sizes: int
    ) -> ModelInput | None:
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = self._scratch()
        try:
            if not scan(scratch.address, given, *sizes):
                return None
            layout = scratch.request.layout
            memory = np.empty(layout.words, np.int64)
            if not library.sharded_infer_fill(scratch.address, address_of(memory)):
                return None
            starts, rows = scratch.dense.tolist()
            return self.assemble(layout, bytes(scratch.own), starts, rows, memory)
        finally:
            self._free.append(scratch)

    def assemble(
        self,
        layout: Layout,
        own: bytes,
        starts: Sequence[int],
        rows: Sequence[int],
        memory: Ints,
        repeats: Ints | None = None,
    ) -> ModelInput:
        """Model input whose parts lie in `memory`, int64.

        Args:
            own: for each feature 1 if it is in the first group.
            starts, rows: place in `memory` and rows of each dense input.
            repeats: as `ModelInput.repeats`.
        """
        floats = memory.view(np.float32)
        own_bags, shared_bags = layout.groups
        if shared_bags.features:
            features, shared = self._pattern(own)
            groups: tuple[JaggedBatch, ...] = (_group(shared, shared_bags, memory, floats),)
            if features:
                groups = (_group(features, own_bags, memory, floats), *groups)
        else:
            groups = (_group(self.features, own_bags, memory, floats),)
        dense = tuple(
            floats[2 * at : 2 * at + count * width].reshape(count, width)
            for at, count, width in zip(starts, rows, self.widths, strict=True)
        )
        return ModelInput(
            layout.batch,
            groups,
            dense,
            True,
            layout.ids_outside,
            repeats,
            may_have_gaps=bool(layout.gaps),
        )

    def _pattern(self, own: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Features with a bag per sample, and with one for all; the same tuples each time."""
        pattern = self._patterns.get(own)
        if pattern is None:
            pattern = (
                tuple(f for f in self.features if own[f]),
                tuple(f for f in self.features if not own[f]),
            )
            if len(self._patterns) < _MAX_PATTERNS:
                self._patterns[own] = pattern
        return pattern

    def _scratch(self) -> _Scratch:
        inputs, features = self._inputs, len(self.features)
        own = np.zeros(features, np.uint8)
        dense = np.zeros((2, len(self.widths)), np.int64)
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
            np.zeros(self.model.mapped, np.int64),
        )
        request = Request(ctypes.addressof(self.model), *[address_of(array) for array in held])
        return _Scratch(ctypes.addressof(request), memoryview(own.data), request, dense, held)


def _padding_of(table: TableSpec) -> int:
    return -1 if table.padding_idx is None else table.padding_idx


def _group(
    features: tuple[int, ...], group: Group, memory: Ints, floats: NDArray[np.float32]
) -> JaggedBatch:
    bags, ids = group.bags, group.ids
    lengths, values, weights = group.lengths_at, group.values_at, group.weights_at
    return JaggedBatch.trusted(
        features,
        memory[values : values + ids],
        memory[lengths : lengths + len(features) * bags].reshape(len(features), bags),
        floats[2 * weights : 2 * weights + ids] if group.weighted else None,
    )
