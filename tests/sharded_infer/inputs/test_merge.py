"""Merged requests: samples keep their bags, shared values are stored once, no bit changes."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sharded_infer.inputs.merge import merge_inputs
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from tests.sharded_infer.inputs.bags import bags_of

ROWS, WIDTHS = 11, (3, 1)
FEATURES = 4


def group(
    generator: np.random.Generator, features: tuple[int, ...], bags: int, *, weighted: bool
) -> JaggedBatch:
    lengths = generator.integers(0, 4, (len(features), bags))
    count = int(lengths.sum())
    weights = generator.normal(size=count).astype(np.float32) if weighted else None
    return JaggedBatch(features, generator.integers(0, ROWS, count), lengths, weights)


def request(
    seed: int, batch: int, shared: tuple[int, ...] = (), *, weighted: bool = False
) -> ModelInput:
    """A request as the reader lays it out: its own features, then those its samples share."""
    generator = np.random.default_rng(seed)
    shared = shared if batch > 1 else ()
    own = tuple(f for f in range(FEATURES) if f not in shared)
    parts = ((own, batch), (shared, 1))
    return ModelInput(
        batch,
        tuple(group(generator, f, size, weighted=weighted) for f, size in parts if f),
        tuple(
            generator.normal(size=(int(generator.choice([1, batch])), width)).astype(np.float32)
            for width in WIDTHS
        ),
        ids_checked=True,
        ids_outside=seed % 3,
    )


@st.composite
def requests(draw: st.DrawFn) -> list[ModelInput]:
    subsets = st.sets(st.integers(0, FEATURES - 1)).map(lambda s: tuple(sorted(s)))
    return [
        request(
            draw(st.integers(0, 2**32)),
            draw(st.integers(1, 4)),
            draw(subsets),
            weighted=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]


@settings(deadline=None)
@given(requests())
def test_the_samples_of_all_requests_keep_their_bags(inputs: list[ModelInput]) -> None:
    merged = merge_inputs(inputs)
    parts = [bags_of(one) for one in inputs]
    wanted = [[bag for part in parts for bag in part[feature]] for feature in range(FEATURES)]
    assert bags_of(merged) == wanted
    assert merged.batch_size == sum(one.batch_size for one in inputs)
    assert merged.ids_checked and merged.ids_outside == sum(one.ids_outside for one in inputs)
    for position, width in enumerate(WIDTHS):
        rows = [np.broadcast_to(r.dense[position], (r.batch_size, width)) for r in inputs]
        if len(inputs) > 1:
            assert np.array_equal(merged.dense[position], np.concatenate(rows))


def test_what_every_request_shares_is_kept_once_a_request() -> None:
    merged = merge_inputs([request(1, 3, (0, 2)), request(2, 1), request(3, 2, (0, 1, 2))])
    assert [g.features for g in merged.groups] == [(1, 3), (0, 2)]
    assert [g.lengths.shape for g in merged.groups] == [(2, 6), (2, 3)]
    assert merged.repeats is not None and merged.repeats.tolist() == [3, 1, 2]
