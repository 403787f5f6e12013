"""Requests to checked model inputs by compiled code, without protobuf objects.

It accepts only the usual forms, and nothing that the portable reader would refuse. The portable
reader takes the rest, and alone decides on errors. The pseudocode is in `native/reader/request.h`.
"""

import ctypes
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import address_of, array_at
from serving.abi import reader as abi
from serving.abi.model import IdOperation, Model, Policy, index_names
from serving.protocol.input_limits import InputLimits
from serving.protocol.message_format import MessageFormat
from serving.protocol.message_size import INFER_LIMITS, LONG_BYTES
from serving.protocol.readers.native_id_maps import NativeIdMaps
from serving.protocol.readers.native_sequences import NativeSequences
from serving.protocol.readers.unknown_ids import UnknownIds
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.inputs.request_reader import LENGTHS, VALUES, WEIGHTS
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import FeatureSpec, ModelSpec, TableSpec

_POLICIES = {"error": Policy.REFUSE, "ignore": Policy.IGNORE, "modulo": Policy.MODULO}


def _policy_of(feature: FeatureSpec) -> Policy:
    return Policy.PASS if feature.is_tower_input else _POLICIES[feature.table.out_of_range]


# Each with the GIL, and without it for long messages.
_SCANS = {
    MessageFormat.INFER: (abi.scan_keeping_gil, abi.scan),
    MessageFormat.PREDICT: (abi.scan_predict_keeping_gil, abi.scan_predict),
}
_FILL = (abi.fill_keeping_gil, abi.fill)
# Clients choose which features a request shares: few patterns occur, and the bound keeps a hostile
# client from filling memory with them.
_MAX_PATTERNS = 64

_NO_LIMIT = 2**63 - 1

Ints = NDArray[np.int64]


class _Request:
    """Memory of one decoding at a time."""

    def __init__(self, model: Model) -> None:
        self.address: int = abi.request_create(model)
        weakref.finalize(self, abi.request_destroy, self.address).atexit = False
        self.parts: abi.InputParts = abi.request_parts(self.address).contents


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
        limits: InputLimits | None = None,
        id_maps: Mapping[str, RowMap] | None = None,
        unknown_ids: UnknownIds | None = None,
        as_sent: bool = False,
    ) -> None:
        """Prepares the reader of a model.

        Args:
            as_sent: read each input once, with its ids as they came: any, unmapped, before steps.
            limits: None: there are none.
            id_maps: by table; ids of others that need one are left raw.
            unknown_ids: where unknown ids are counted; None: nowhere that is seen.
        """
        features, sparse = spec.input_features, SparseInputs(spec)
        sources, copies = sparse.of_features, max(sparse.copies)
        required_inputs = spec.required_inputs
        self._id_maps = NativeIdMaps(spec, id_maps or {})
        maps_of = self._id_maps.of_features
        if as_sent:
            features = tuple(features[sources.index(at)] for at in range(len(sparse.names)))
            sources, copies = tuple(range(len(features))), 1
            maps_of = self._id_maps.raw([feature.name for feature in features])
        self.features = tuple(range(len(features)))
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
        steps = [step for feature in features for step in feature.id_steps]
        names += sequences.names
        encoded = [name.encode() for name in names]
        slots = 1 << (2 * len(names)).bit_length()
        # Referenced here, because compiled code has only addresses.
        self._unknown_ids = UnknownIds(spec) if unknown_ids is None else unknown_ids
        strings = {
            name: (hashed.number, seed) for name, (hashed, seed) in spec.string_inputs.items()
        }
        self._held = (
            np.array(sources, np.int32),
            np.array([name in required_inputs for name in sparse.names], np.uint8),
            np.array([strings.get(name, (-1, 0))[0] for name in sparse.names], np.int32),
            np.array([strings.get(name, (-1, 0))[1] for name in sparse.names], np.uint64),
            np.array([feature.table.rows for feature in features], np.int64),
            np.array([_policy_of(feature) for feature in features], np.int32),
            np.array([_padding_of(feature.table) for feature in features], np.int64),
            np.cumsum([0, *(len(feature.id_steps) for feature in features)], dtype=np.int64),
            np.array([IdOperation[operation.upper()] for operation, _ in steps], np.int32),
            np.array([number for _, number in steps], np.int64),
            maps_of,
            self._unknown_ids.cells,
            np.array(self.widths, np.int64),
            np.frombuffer(bytearray(b"".join(encoded)), np.uint8),
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
        held_sources, required, hashes, seeds, rows, policies, paddings = addresses[:7]
        step_starts, operations, operands = addresses[7:10]
        maps, unknown, widths, texts, starts, table, lengths, firsts, numbers = addresses[10:19]
        shortest, longest, computed_once = addresses[19:]
        self.model = Model(
            len(features),
            len(sparse.names),
            len(self.widths),
            max_batch,
            _NO_LIMIT if limits is None else limits.max_ids,
            copies,
            held_sources,
            required,
            hashes,
            seeds,
            rows,
            policies,
            paddings,
            step_starts,
            operations,
            operands,
            maps,
            len(spec.mapped_tables),
            unknown,
            widths,
            texts,
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
            _NO_LIMIT if limits is None else limits.max_inputs,
            ctypes.addressof(INFER_LIMITS.native),
        )
        index_names(self.model)
        self._mapped = tuple(table.name for table in spec.mapped_tables)
        self._patterns: dict[bytes, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        # As many as there were simultaneous calls.
        self._free: list[_Request] = []

    def read_message(
        self, message: bytes, form: MessageFormat = MessageFormat.INFER
    ) -> ModelInput | None:
        """Reads a serialized message; None if the portable reader has to decide."""
        return self._read(_SCANS[form], len(message), message, len(message))

    def _read(
        self, scans: Sequence[Callable[..., bool]], size: int, *arguments: bytes | int
    ) -> ModelInput | None:
        is_long = size >= LONG_BYTES
        try:
            request = self._free.pop()
        except IndexError:
            request = _Request(self.model)
        try:
            if not scans[is_long](request.address, *arguments):
                return None
            memory = np.empty(request.parts.layout.words, np.int64)
            if not _FILL[is_long](request.address, address_of(memory)):
                return None
            unknown, found = self._unknown(request.parts), self.assemble(request.parts, memory)
            return replace(found, ids_unknown=unknown) if unknown else found
        finally:
            self._free.append(request)

    def _unknown(self, parts: abi.InputParts) -> tuple[tuple[str, int], ...]:
        if not parts.layout.ids_outside:
            return ()
        counts = array_at(ctypes.c_int64, parts.unknown, len(self._mapped))
        return tuple(sorted(c for c in zip(self._mapped, counts, strict=True) if c[1]))

    def assemble(
        self, parts: abi.InputParts, memory: Ints, repeats: Ints | None = None
    ) -> ModelInput:
        """Model input whose parts lie in `memory`, int64.

        Args:
            repeats: as `ModelInput.repeats`.
        """
        layout, floats = parts.layout, memory.view(np.float32)
        own_bags, shared_bags = layout.groups
        if shared_bags.features:
            features, shared = self._pattern(ctypes.string_at(parts.own, len(self.features)))
            groups: tuple[JaggedBatch, ...] = (_group(shared, shared_bags, memory, floats),)
            if features:
                groups = (_group(features, own_bags, memory, floats), *groups)
        else:
            groups = (_group(self.features, own_bags, memory, floats),)
        starts = array_at(ctypes.c_int64, parts.dense_at, len(self.widths))
        rows = array_at(ctypes.c_int64, parts.dense_rows, len(self.widths))
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


def _padding_of(table: TableSpec) -> int:
    return -1 if table.padding_idx is None else table.padding_idx


def _group(
    features: tuple[int, ...], group: abi.Group, memory: Ints, floats: NDArray[np.float32]
) -> JaggedBatch:
    bags, ids = group.bags, group.ids
    lengths, values, weights = group.lengths_at, group.values_at, group.weights_at
    return JaggedBatch.trusted(
        features,
        memory[values : values + ids],
        memory[lengths : lengths + len(features) * bags].reshape(len(features), bags),
        floats[2 * weights : 2 * weights + ids] if group.weighted else None,
    )
