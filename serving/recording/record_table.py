"""Recorded calls as tables of Arrow: a row a request.

request_id          the request's own; empty: none was sent
time                when its answer was ready
samples
ids_outside         unknown ids, or outside of their tables
has_defaults        default rows took part in the scores
status              OK, or the name of a status code
decode_seconds, queue_seconds, lookup_seconds, tower_seconds
in.NAME             a sparse input's ids as sent (hashes of strings), a sequence's numbers, or a
                    dense input's numbers, of all samples; of one bag or row, all share it
in.NAME.lengths     of a sparse input's bags
in.NAME.weights     where ids have weights
out.NAME            an output's scores; empty: the request failed
"""

import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.recording.waiting_calls import Lists, RecordedCalls
from sharded_infer.samples.record import WIDTHS

HashIds = Callable[[NDArray[Any]], NDArray[np.int64]]
_MICROSECONDS = 1e6


def keyed_hash(key: bytes) -> HashIds:
    """A function that replaces ids by the first 63 bits of their BLAKE2b with a key."""

    def hashed(ids: NDArray[Any]) -> NDArray[np.int64]:
        distinct, places = np.unique(ids, return_inverse=True)
        digests = b"".join(
            hashlib.blake2b(number.tobytes(), digest_size=8, key=key).digest()
            for number in distinct.astype("<i8")
        )
        return (np.frombuffer(digests, "<i8") & np.int64(2**63 - 1))[places]

    return hashed


def record_table(
    arrow: Any, calls: RecordedCalls, *, without: Collection[str], hashed: dict[str, HashIds]
) -> Any:
    """The calls as a table.

    Args:
        arrow: the module `pyarrow`.
        without: inputs that are left out.
        hashed: sparse inputs whose ids are replaced; other inputs of these names are left out.
    """
    times = np.rint(calls.seconds["time"] * _MICROSECONDS).astype("datetime64[us]")
    columns: dict[str, Any] = {
        "request_id": arrow.LargeStringArray.from_buffers(
            len(calls.samples), *_buffers(arrow, calls.ids)
        ),
        "time": arrow.array(times, arrow.timestamp("us", tz="UTC")),
        "samples": arrow.array(calls.samples.astype(np.int32)),
        "ids_outside": arrow.array(calls.ids_outside.astype(np.int32)),
        "has_defaults": arrow.array(calls.has_defaults != 0),
        "status": arrow.array(calls.codes, arrow.string()).dictionary_encode(),
    }
    for name in ("decode", "queue", "lookup", "tower"):
        columns[f"{name}_seconds"] = arrow.array(calls.seconds[name].astype(np.float32))
    for name, values in calls.values.items():
        # Numbers are no ids, of which a hash tells nothing.
        if name in without or (name in hashed and values.numbers.dtype.kind == "f"):
            continue
        numbers = hashed[name](values.numbers) if name in hashed else values.numbers
        columns[f"in.{name}"] = _list(arrow, values.ends, numbers)
        lengths = calls.lengths[name]
        columns[f"in.{name}.lengths"] = _list(arrow, lengths.ends, lengths.numbers.astype(np.int32))
        weights = calls.weights.get(name)
        if weights is not None and (weights.numbers != 1).any():
            columns[f"in.{name}.weights"] = _list(arrow, weights.ends, weights.numbers)
    for prefix, lists in (("in", calls.dense), ("out", calls.scores)):
        for name, own in lists.items():
            if prefix == "out" or (name not in without and name not in hashed):
                columns[f"{prefix}.{name}"] = _list(arrow, own.ends, own.numbers)
    return arrow.table(columns, metadata={WIDTHS: json.dumps(calls.widths)})


def _list(arrow: Any, ends: NDArray[np.int64], numbers: NDArray[Any]) -> Any:
    return arrow.LargeListArray.from_arrays(arrow.array(_offsets(ends)), arrow.array(numbers))


def _buffers(arrow: Any, texts: Lists) -> tuple[Any, Any]:
    return arrow.py_buffer(_offsets(texts.ends)), arrow.py_buffer(texts.numbers)


def _offsets(ends: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), ends])
