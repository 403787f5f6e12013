"""Random requests of a small model with sequences, in every form that compiled code reads."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.ids.id_index import IdIndex
from kernels.ids.index_writer import id_index_parts
from sharded_infer.client import Bags
from sharded_infer.client.request_message import request_message
from sharded_infer.inputs.id_map import IdMap
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.requests_by_chance import Arrays

MAX_BATCH = 5
SPEC = ModelSpec(
    "sequences",
    (
        TableSpec("item", rows=9, dim=2, features=("candidate", "history")),
        TableSpec(
            "wide",
            rows=7,
            dim=1,
            features=("history",),
            out_of_range="modulo",
            id_steps={"history": (("add", -1),)},
        ),
        TableSpec("action", rows=5, dim=1, out_of_range="ignore", padding_idx=1),
        TableSpec("query", rows=24, dim=1, id_map=IdMapSpec("zero")),
        TableSpec(
            "shop",
            rows=6,
            dim=1,
            out_of_range="modulo",
            padding_idx=0,
            id_steps={"shop": (("multiply", -5), ("at_most", 4))},
        ),
    ),
    DenseSpec({"price": 1}),
    sequences={
        # Named as one of its features, or otherwise.
        "history": SequenceSpec(9, ("history", "action"), {"age": 1, "pair": 2}, ids=("history",)),
        "past": SequenceSpec(4, ("query", "shop"), {"spent": 1}, ids=("shop",)),
    },
)
_IDS = {
    "candidate": range(9),
    "history": range(9),
    "action": (0, 1, 2, 4, 5, -1, -(2**31)),
    "query": (0, 3, 11, 12, -7, 2**40),
    "shop": (0, 1, 5, 6, -1, 2**63 - 1),
}


def id_maps() -> dict[str, IdMap]:
    """Maps of the ids 0 to 11."""
    table = SPEC.mapped_tables[0]
    ids = np.arange(12)
    parts = id_index_parts([(ids, ids[::-1].copy())], len(ids), table.rows)
    return {table.name: IdMap(table, IdIndex.open(b"".join(parts)))}


def _ids(draw: st.DrawFn, name: str, count: int) -> NDArray[Any]:
    ids = draw(st.lists(st.sampled_from(_IDS[name]), min_size=count, max_size=count))
    whole = np.array(ids, np.int64)
    fits = not count or (whole.min() >= -(2**31) and whole.max() < 2**31)
    return whole.astype(np.int32) if fits and draw(st.booleans()) else whole


def _values(draw: st.DrawFn, name: str, count: int) -> NDArray[Any]:
    width = SPEC.sequence_numbers.get(name)
    if width is None:
        return _ids(draw, name, count)
    shape = (count,) if width == 1 else (count, width)
    return np.random.default_rng(draw(st.integers(0, 9))).normal(size=shape).astype(np.float32)


def _padded(values: NDArray[Any], lengths: NDArray[Any], room: int) -> NDArray[Any]:
    padded = np.full((len(lengths), room, *values.shape[1:]), 7, values.dtype)
    padded[np.arange(room) < lengths[:, None]] = values
    return padded


def _sequence(draw: st.DrawFn, name: str, batch: int) -> Arrays:
    form = draw(st.sampled_from(["absent", "flat", "matrix", "own", "whole", "mixed", "padded"]))
    if form == "absent":
        return {}
    size = draw(st.sampled_from([1, batch]))
    each = 1 if form == "flat" else draw(st.integers(0, 3))
    lengths = np.full(size, each)
    if form not in ("flat", "matrix"):
        lengths = np.array([draw(st.integers(0, 4)) for _ in range(size)])
    inputs: Arrays = {}
    for member in SPEC.sequences[name].members:
        values = _values(draw, member, int(lengths.sum()))
        numbers = SPEC.sequence_numbers.get(member, 0)
        # Several numbers of an id are also sent without an axis of positions.
        flat = numbers > 1 and draw(st.booleans())
        if form == "matrix" and not flat:
            values = values.reshape(size, each, *values.shape[1:])
        if form == "padded" and not flat:
            values = _padded(values, lengths, int(lengths.max()) + draw(st.integers(0, 2)))
        if numbers == 1 and values.ndim == 2 and draw(st.booleans()):
            values = values[..., None]
        has_own = form == "own" or (form == "mixed" and draw(st.booleans()))
        if has_own or (form == "matrix" and flat):
            inputs[f"{member}.lengths"] = lengths.astype(draw(st.sampled_from(["i4", "i8"])))
        inputs[member] = values
    if form in ("whole", "mixed", "padded"):
        inputs[f"{name}.lengths"] = lengths
    return inputs


@st.composite
def sequences_by_chance(draw: st.DrawFn) -> Arrays:
    batch = draw(st.integers(1, MAX_BATCH))
    size = draw(st.sampled_from([1, batch]))
    inputs: Arrays = {"price": np.ones((draw(st.sampled_from([1, batch])), 1), np.float32)}
    if draw(st.booleans()):
        inputs["candidate"] = _ids(draw, "candidate", size)
    for name in SPEC.sequences:
        inputs |= _sequence(draw, name, batch)
    return dict(draw(st.permutations(list(inputs.items()))))


def _bags(inputs: Arrays, name: str) -> Bags:
    array = inputs[name]
    numbers = SPEC.sequence_numbers.get(name, 0)
    owners = [one for one, spec in SPEC.sequences.items() if name in spec.members]
    keys = [f"{owner}.lengths" for owner in (name, *owners) if f"{owner}.lengths" in inputs]
    in_rows = array.ndim == 3 or (array.ndim == 2 and numbers < 2)
    each = () if numbers < 2 else (numbers,)
    if not keys:
        count, size = len(array), array.shape[1] if in_rows else 1
        return Bags(array.reshape(count * size, *each), np.full(count, size))
    lengths = inputs[keys[0]]
    if in_rows:
        array = array[np.arange(array.shape[1]) < lengths[:, None]]
    return Bags(array.reshape(len(array), *each), lengths)


def as_predict(inputs: Arrays) -> bytes:
    sides: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, array in inputs.items():
        if name in SPEC.dense.inputs:
            sides[len(array) > 1][name] = array
        elif not name.endswith(".lengths"):
            bags = _bags(inputs, name)
            sides[np.size(bags.lengths) > 1][name] = bags
    return request_message("sequences", user=sides[0], candidates=sides[1])
