"""Rows of sequences under any plan, beside lookups of single ids."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.lookups.test_plan_lookups import (
    BATCH,
    PLANS,
    SPEC,
    build_lookup,
    encoded_tables,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# Two features of one table in different sequences, and a table of means.
SEQUENCES = {
    "clicks": SequenceSpec(max_length=30, features=("clicked", "u")),
    "pages": SequenceSpec(max_length=3, features=("page",), keep="first", pad="left"),
}
WITH = replace(SPEC, sequences=SEQUENCES)


def input_of(bags: int, seed: int = 0) -> JaggedBatch:
    """Random ids of `WITH`, whose sequences have equal lengths."""
    features = WITH.table_features
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 5, (len(features), bags))
    names = [feature.name for feature in features]
    lengths[names.index("clicked")] = lengths[names.index("u")] = generator.integers(0, 20, bags)
    lengths[names.index("clicked"), 0] = lengths[names.index("u"), 0] = 19
    values = [
        generator.integers(0, feature.table.rows, int(counts.sum()))
        for feature, counts in zip(features, lengths, strict=True)
    ]
    return JaggedBatch(tuple(range(len(features))), np.concatenate(values), lengths)


def single(found: PlanLookups, name: str, ids: np.ndarray) -> torch.Tensor:
    at = [feature.name for feature in SPEC.features].index(name)
    lengths = np.zeros((len(SPEC.features), len(ids)), np.int64)
    lengths[at] = 1
    batch = ModelInput(len(ids), (JaggedBatch(tuple(range(len(lengths))), ids, lengths),), ())
    starts = np.cumsum([0, *(feature.table.dim for feature in SPEC.features)])
    return found.look_up(batch, rows=len(ids)).pooled[:, starts[at] : starts[at + 1]]


@pytest.mark.parametrize("plan", PLANS)
def test_each_place_has_the_bits_of_its_row(plan: str, tmp_path: Path) -> None:
    sequences, alone = (
        build_lookup(tmp_path, encoded_tables(), PLANS[plan], spec=spec) for spec in (WITH, SPEC)
    )
    group = input_of(BATCH)
    found = sequences.look_up(ModelInput(BATCH, (group,), ()), rows=BATCH)
    clicks, pages = found.sequences
    assert clicks.rows.shape == (BATCH, 3 * GRAIN, 8 + 6)
    assert pages.rows.shape == (BATCH, 3, 4)
    starts = np.cumsum(group.lengths.sum(axis=1)) - group.lengths.sum(axis=1)
    names = [feature.name for feature in WITH.table_features]
    for name, rows, first in (("clicked", clicks.rows, 0), ("u", clicks.rows, 8)):
        at = names.index(name)
        begin = starts[at]
        for sample, length in enumerate(group.lengths[at].tolist()):
            ids = group.values[begin : begin + length]
            part = rows[sample, :, first : first + (8 if first == 0 else 6)]
            assert torch.equal(part[:length], single(alone, name, ids))
            assert not part[length:].any()
            begin += length
    assert torch.equal(clicks.lengths, torch.from_numpy(group.lengths[names.index("u")]))
    at = names.index("page")
    first_sample = group.values[starts[at] : starts[at] + group.lengths[at, 0]]
    kept = min(3, len(first_sample))
    assert torch.equal(pages.rows[0, 3 - kept :], single(alone, "page", first_sample[:kept]))


@pytest.mark.parametrize("requests", [1, 2])
def test_what_requests_share_is_looked_up_once(requests: int, tmp_path: Path) -> None:
    found = build_lookup(tmp_path, encoded_tables(), PLANS["mixed"], spec=WITH)
    shared = input_of(requests).select([3, 4, 5])
    own = input_of(BATCH, seed=1).select([0, 1, 2])
    repeats = None if requests == 1 else np.array([2, BATCH - 2])
    batch = ModelInput(BATCH, (own, shared), (), repeats=repeats)
    whole = found.look_up(batch, rows=BATCH)
    alone = found.look_up(ModelInput(requests, (input_of(requests),), ()), rows=requests).sequences
    for one, expected in zip(whole.sequences, alone, strict=True):
        assert torch.equal(one.rows, expected.rows)
        assert len(one.lengths) == requests
    assert whole.work.rows_saved > 0
