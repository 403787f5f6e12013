"""Recorded calls of one process, from compiled code to arrays."""

import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.native_library import array_at, memory_at
from serving.abi import recording as abi
from serving.abi.reader import request_create, request_destroy
from serving.inference.predict_calls import PredictCalls
from serving.protocol.readers.native_reader import NativeReader
from serving.status import StatusCode
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.specs.model_spec import ModelSpec

_SECONDS = ("time", "decode", "queue", "lookup", "tower")
_Ends = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lists:
    """Lists of numbers, one of each call.

    Attributes:
        ends: int64 `[calls]`, where each call's numbers end.
        numbers: of all calls, one after another.
    """

    ends: _Ends
    numbers: NDArray[Any]


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """Calls of one version, as they were sent, and their scores.

    Attributes:
        ids: the requests' ids, their characters (UTF-8, uint8); empty: none was sent.
        samples: int64 `[calls]`.
        ids_outside: int64 `[calls]`: unknown ids, or outside of their tables.
        has_defaults: int32 `[calls]`: not 0: default rows took part in the scores.
        codes: names of status codes.
        seconds: fp64 `[calls]` by name: `time` since 1970, then durations.
        values: ids of each sparse input, and numbers of sequences.
        lengths: of each input's bags: one bag of a call, or one for each sample.
        weights: as `values`; empty without weights.
        dense: numbers of each dense input: one row of a call, or one for each sample.
        widths: numbers in a row of each dense input, and at a position of a sequence's, unless 1.
        scores: of each output; none of a call that failed.
    """

    version: LoadedVersion
    ids: Lists
    samples: NDArray[np.int64]
    ids_outside: NDArray[np.int64]
    has_defaults: NDArray[np.int32]
    codes: list[str]
    seconds: dict[str, NDArray[np.float64]]
    values: dict[str, Lists]
    lengths: dict[str, Lists]
    weights: dict[str, Lists]
    dense: dict[str, Lists]
    widths: dict[str, int]
    scores: dict[str, Lists]


class WaitingCalls:
    """Calls that compiled code has recorded and that wait to be written."""

    def __init__(self, calls: PredictCalls, share: float, most_bytes: int) -> None:
        """Records a `share` of the calls, while less than `most_bytes` wait."""
        self._calls = calls
        bound = min(round(share * 2.0**64), 2**64 - 1)
        abi.recording_set(calls.address, bound, most_bytes)
        # Without versions, whose memory they would keep.
        self._readers: dict[tuple[str, int], _SentReader] = {}

    @property
    def dropped(self) -> int:
        """Calls that were dropped so far, because too many waited."""
        count: int = abi.recording_dropped(self._calls.address)
        return count

    def take(self) -> Iterator[RecordedCalls | int]:
        """All waiting calls, by version; or the number of those that could not be read again."""
        batch = abi.recording_take(self._calls.address)
        if not batch:
            return
        try:
            while route := abi.recording_route(batch):
                version = self._calls.routes.version(route)
                reader = self._reader(version.model.spec, version.model.version)
                recorded = abi.RecordedCalls()
                abi.recording_read(batch, reader.request, recorded)
                if recorded.unread:
                    yield int(recorded.unread)
                if recorded.calls:
                    yield reader.calls(version, recorded)
        finally:
            abi.recording_finish(self._calls.address, batch)

    def _reader(self, spec: ModelSpec, version: int) -> "_SentReader":
        known = self._readers.get((spec.name, version))
        if known is None or known.spec is not spec:
            known = self._readers[spec.name, version] = _SentReader(spec)
        return known


class _SentReader:
    """Reads calls of one version as they were sent."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._native = NativeReader(spec, max_batch=2**31, as_sent=True)
        self._inputs = SparseInputs(spec).names
        self._numbers = spec.sequence_numbers
        self._dense, self._outputs = tuple(spec.dense.inputs), spec.tower.outputs
        self.request: int = request_create(self._native.model)
        weakref.finalize(self, request_destroy, self.request).atexit = False

    def calls(self, version: LoadedVersion, found: abi.RecordedCalls) -> RecordedCalls:
        """The calls, with arrays of their own."""
        count = found.calls
        seconds = _array(ctypes.c_double, found.seconds, count * len(_SECONDS))
        by_name = seconds.reshape(count, len(_SECONDS))
        values = _lists(self._inputs, count, found.values, ctypes.c_int64)
        weights: dict[str, Lists] = {}
        if found.weights:
            weights = _lists(self._inputs, count, found.weights, ctypes.c_float)
        lengths = _lists(self._inputs, count, found.lengths, ctypes.c_int64)
        for name, width in self._numbers.items():
            bits, own = values[name], lengths[name]
            lengths[name] = Lists(own.ends, own.numbers // width)
            values[name] = Lists(bits.ends, bits.numbers.astype(np.uint32).view(np.float32))
            weights.pop(name, None)
        return RecordedCalls(
            version,
            _list(count, found.ids, ctypes.c_uint8),
            _array(ctypes.c_int64, found.samples, count).copy(),
            _array(ctypes.c_int64, found.ids_outside, count).copy(),
            _array(ctypes.c_int32, found.has_defaults, count).copy(),
            [_CODES[code] for code in _array(ctypes.c_int32, found.codes, count).tolist()],
            {name: by_name[:, at].copy() for at, name in enumerate(_SECONDS)},
            values,
            lengths,
            weights,
            _lists(self._dense, count, found.dense, ctypes.c_float),
            {**self.spec.dense.inputs, **{n: w for n, w in self._numbers.items() if w > 1}},
            _lists(self._outputs, count, found.scores, ctypes.c_float),
        )


_CODES = {code.number: code.name for code in StatusCode}


def _lists(names: tuple[str, ...], calls: int, columns: Any, kind: Any) -> dict[str, Lists]:
    """Lists of each name, from an address of `abi.RecordedLists`."""
    own = array_at(abi.RecordedLists, columns, len(names)) if names else ()
    return {name: _list(calls, column, kind) for name, column in zip(names, own, strict=True)}


def _list(calls: int, column: abi.RecordedLists, kind: Any) -> Lists:
    ends = _array(ctypes.c_int64, column.ends, calls).copy()
    return Lists(ends, _array(kind, column.numbers, int(ends[-1])).copy())


def _array(kind: Any, address: int, count: int) -> NDArray[Any]:
    return np.frombuffer(memory_at(address, count * ctypes.sizeof(kind)), np.dtype(kind))
