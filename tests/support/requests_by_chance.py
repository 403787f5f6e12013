"""Random requests of a small model, in every form that clients may send."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec

Arrays = dict[str, NDArray[Any]]

MAX_BATCH = 6
SPEC = ModelSpec(
    "small",
    (
        TableSpec(
            "strict",
            rows=9,
            dim=2,
            features=("item", "clicked"),
            id_steps={"clicked": (("add", -100), ("remainder", 9))},
        ),
        TableSpec(
            "lenient",
            rows=5,
            dim=3,
            out_of_range="ignore",
            padding_idx=1,
            id_steps={"lenient": (("multiply", 3), ("divide", 2), ("at_least", -1))},
        ),
        TableSpec("hashed", rows=7, dim=1, out_of_range="modulo", padding_idx=0),
        TableSpec("user.country", rows=4, dim=2, padding_idx=3),
        # Features of several tables, one of which only these two have.
        TableSpec("wide", rows=9, dim=1, features=("clicked", "tag"), padding_idx=5),
        TableSpec(
            "deep",
            rows=8,
            dim=1,
            features=("tag", "item", "hashed"),
            out_of_range="modulo",
            id_steps={
                "item": (("divide", 3),),
                "hashed": (("at_most", 40), ("multiply", -(2**62))),
            },
        ),
    ),
    DenseSpec({"context": 3, "bid": 1}),
)
DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
_LOW, _HIGH = -(2**63), 2**63 - 1


def serialized(inputs: Arrays, **fields: Any) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=SPEC.name, **fields)
    for name, array in inputs.items():
        datatype = DATATYPES[array.dtype.name]
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


class _Ids(NamedTuple):
    spec: ModelSpec
    raw: Mapping[str, Sequence[int]]

    def draw(self, draw: st.DrawFn, name: str, count: int) -> NDArray[Any]:
        if name in self.raw:
            one = st.sampled_from(self.raw[name])
            return np.array(draw(st.lists(one, min_size=count, max_size=count)), np.int64)
        return _rows(draw, self.spec, name, count)


def _rows(draw: st.DrawFn, spec: ModelSpec, name: str, count: int) -> NDArray[Any]:
    tables = [feature.table for feature in spec.features if feature.name == name]
    table = min(tables, key=lambda t: (t.out_of_range != "error", t.rows))
    inside = st.integers(0, table.rows - 1)
    if table.out_of_range == "error":
        return np.array(draw(st.lists(inside, min_size=count, max_size=count)), np.int64)
    small = draw(st.booleans())
    outside = st.sampled_from([-1, -8, table.rows, 2**31 - 1, -(2**31)])
    huge = outside if small else st.one_of(outside, st.sampled_from([_LOW, _HIGH, 2**32]))
    drawn = draw(st.lists(st.one_of(inside, inside, huge), min_size=count, max_size=count))
    return np.array(drawn, np.int64)


def _narrow(draw: st.DrawFn, array: NDArray[Any]) -> NDArray[Any]:
    fits = array.size == 0 or (array.min() >= -(2**31) and array.max() < 2**31)
    return array.astype(np.int32) if fits and draw(st.booleans()) else array


def _floats(draw: st.DrawFn, *shape: int) -> NDArray[np.float32]:
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    return generator.normal(size=shape).astype(np.float32)


def _lengths(draw: st.DrawFn, *shape: int) -> NDArray[Any]:
    count = int(np.prod(shape))
    drawn = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    return np.array(drawn, np.int64).reshape(shape)


def _feature(draw: st.DrawFn, drawn: _Ids, name: str, batch: int) -> Arrays:
    size = draw(st.sampled_from([1, batch]))
    form = draw(st.sampled_from(["absent", "flat", "matrix", "jagged", "jagged"]))
    inputs: Arrays = {}
    if form == "absent":
        return inputs
    if form == "jagged":
        lengths = _lengths(draw, size)
        inputs[f"{name}.lengths"] = _narrow(draw, lengths)
        ids = drawn.draw(draw, name, int(lengths.sum()))
    elif form == "flat":
        ids = drawn.draw(draw, name, size)
    else:
        per_sample = draw(st.integers(0, 3))
        ids = drawn.draw(draw, name, size * per_sample).reshape(size, per_sample)
    inputs[name] = _narrow(draw, ids)
    if draw(st.booleans()):
        inputs[f"{name}.weights"] = _floats(draw, *ids.shape)
    return inputs


def _all_at_once(draw: st.DrawFn, drawn: _Ids, batch: int) -> Arrays:
    lengths = _lengths(draw, len(drawn.spec.sparse_inputs), draw(st.sampled_from([1, batch])))
    totals = lengths.sum(axis=1).tolist()
    sent = zip(drawn.spec.sparse_inputs, totals, strict=True)
    ids = np.concatenate([drawn.draw(draw, name, total) for name, total in sent])
    inputs: Arrays = {"sparse.values": _narrow(draw, ids), "sparse.lengths": _narrow(draw, lengths)}
    if draw(st.booleans()):
        inputs["sparse.weights"] = _floats(draw, len(ids))
    return inputs


@st.composite
def inputs_by_chance(
    draw: st.DrawFn, spec: ModelSpec = SPEC, raw: Mapping[str, Sequence[int]] | None = None
) -> Arrays:
    """Valid inputs, in any order; `raw` has the ids of features whose ids are not rows."""
    drawn = _Ids(spec, raw or {})
    batch = draw(st.integers(1, MAX_BATCH))
    inputs: Arrays = {
        name: _floats(draw, draw(st.sampled_from([1, batch])), width)
        for name, width in spec.dense.inputs.items()
    }
    if draw(st.integers(0, 3)) == 0:
        inputs |= _all_at_once(draw, drawn, batch)
    else:
        for name in spec.sparse_inputs:
            inputs |= _feature(draw, drawn, name, batch)
    return dict(draw(st.permutations(list(inputs.items()))))


def check_same(found: ModelInput, wanted: ModelInput) -> None:
    """Compare array for array, dtype and bits."""
    assert found.batch_size == wanted.batch_size
    assert found.ids_checked and wanted.ids_checked
    assert found.ids_outside == wanted.ids_outside
    assert found.repeats is None and wanted.repeats is None
    assert [g.features for g in found.groups] == [g.features for g in wanted.groups]
    pairs = list(zip(found.dense, wanted.dense, strict=True))
    for mine, theirs in zip(found.groups, wanted.groups, strict=True):
        pairs += [(mine.values, theirs.values), (mine.lengths, theirs.lengths)]  # type: ignore[list-item]
        assert (mine.weights is None) == (theirs.weights is None)
        if mine.weights is not None and theirs.weights is not None:
            pairs.append((mine.weights, theirs.weights))
    for ours, other in pairs:
        assert ours.dtype == other.dtype and ours.shape == other.shape
        assert ours.flags.c_contiguous and ours.flags.aligned
        # Bits, not numbers.
        assert ours.tobytes() == other.tobytes()
