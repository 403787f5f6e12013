"""Default rows that stand for a host's, beside a bag by bag reference."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sharded_infer.errors import ShardHostError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import Packed
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.sharded_infer.inputs.bags import bags_of
from tests.sharded_infer.lookups.test_batch_lookup import Deploy, Deployment, lose
from tests.sharded_infer.lookups.test_batch_lookup import deploy as deploy
from tests.sharded_infer.lookups.test_batch_lookup import threads as threads
from tests.sharded_infer.lookups.test_plan_lookups import FEATURES, PLANS, SPEC, inputs, rows_of
from tests.sharded_infer.lookups.test_sequence_rows import SEQUENCES, input_of

pytestmark = pytest.mark.usefixtures("poisoned_memory")

# Their small multiples are exact in fp32.
ROWS: dict[str, tuple[float, ...]] = {
    "ads": (0.25, -1.0, 3.0, 0.5, 8.0, 0.0, -0.75, 1.0),
    "country": (0.0,) * 5,
    "user": (1.0, 2.0, 4.0, -0.5, -0.25, 16.0),
    "page": (-1.0, 1.5, 0.125, 2.0),
}


def spec_with(tables: Sequence[str]) -> ModelSpec:
    declared = {name: "zeros" if name == "country" else ROWS[name] for name in tables}
    changed = [replace(table, default_row=declared.get(table.name)) for table in SPEC.tables]
    return replace(SPEC, tables=tuple(changed))


def front_without(
    deployment: Deployment,
    lost: int,
    tables: Sequence[str] = tuple(ROWS),
    sequences: Mapping[str, SequenceSpec] | None = None,
) -> PlanLookups:
    """A front of no rows of its own, whose host `lost` fails."""
    hosts = deployment.hosts((), **{f"host_{lost}": lose})
    spec = replace(spec_with(tables), sequences=SPEC.sequences if sequences is None else sequences)
    return PlanLookups(spec, deployment.placed, {}, hosts=hosts)


def expected(
    deployment: Deployment, lost: int, asked: ModelInput
) -> tuple[NDArray[np.float32], Mapping[str, NDArray[np.bool_]]]:
    """Pooled embeddings, and the samples that used each table's default row."""
    alone = deployment.in_one_process().look_up(asked, rows=asked.batch_size).pooled.numpy()
    starts = np.cumsum([0, *(feature.table.dim for feature in SPEC.features)])
    samples: dict[str, NDArray[np.bool_]] = {}
    for number, bags in enumerate(bags_of(asked)):
        table = SPEC.features[number].table
        pieces = [p for p in deployment.placed if p.host == lost and p.table.name == table.name]
        for sample, bag in enumerate(bags):
            rows = list(rows_of(table, bag))
            if not any(p.first_row <= i < p.first_row + p.rows for p in pieces for i, _ in rows):
                continue
            pooled = sum(weight for _, weight in rows) * np.array(ROWS[table.name], np.float32)
            if table.pooling == "mean":
                pooled = pooled / len(rows)
            alone[sample, starts[number] : starts[number + 1]] = pooled
            samples.setdefault(table.name, np.zeros(asked.batch_size, np.bool_))[sample] = True
    return alone, samples


def check(
    found: LookedUp, pooled: NDArray[np.float32], samples: Mapping[str, NDArray[np.bool_]]
) -> None:
    np.testing.assert_allclose(found.pooled.numpy()[: len(pooled)], pooled, rtol=1e-5, atol=1e-6)
    assert sorted(found.work.defaults) == list(found.work.defaults) == sorted(samples)
    for table, took in samples.items():
        np.testing.assert_array_equal(found.work.defaults[table], took)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_bags_with_an_id_on_a_lost_host_take_the_default_row_and_others_do_not(
    deploy: Deploy, plan: str, lost: int
) -> None:
    deployment = deploy(plan)
    front = front_without(deployment, lost)
    for asked in inputs():
        check(front.look_up(asked, rows=8, may_default=True), *expected(deployment, lost, asked))


@pytest.mark.parametrize("plan", PLANS)
def test_what_samples_share_takes_default_rows_apart_too(deploy: Deploy, plan: str) -> None:
    deployment = deploy(plan)
    front = front_without(deployment, 1)
    for asked in inputs()[1:3]:
        pooled, samples = expected(deployment, 1, asked)
        own, shared = front.look_up_apart(asked, rows=8, request_rows=4, may_default=True)
        owners = np.zeros(6, np.int64)
        if asked.repeats is not None:
            owners = np.arange(len(asked.repeats)).repeat(asked.repeats)
        together = torch.cat([own.pooled[:6], shared[owners]], dim=1)
        check(LookedUp(together, 0, own.work), pooled, samples)


@pytest.mark.parametrize(("requests", "as_many"), [(1, False), (3, False), (3, True)])
def test_samples_of_packed_sequences_take_default_rows_as_those_of_padded_ones(
    deploy: Deploy, requests: int, as_many: bool
) -> None:
    """`as_many`: the batch has as many samples as packed positions."""
    # Host 1 has `user`.
    front = front_without(deploy("ranks"), 1, sequences=SEQUENCES)
    shared = input_of(requests).select([3, 4, 5])
    lengths = shared.lengths[0].copy()
    values = [shared.values]
    if requests > 1:
        # The last request has no clicks.
        values = np.split(shared.values, np.cumsum(shared.lengths))
        for feature in (0, 1):
            values[feature * requests + 2] = values[feature * requests + 2][:0]
        lengths[2] = 0
        shared.lengths[:2, 2] = 0
    shared = replace(shared, values=np.concatenate(values))
    samples = int(np.maximum(lengths, 1).sum()) if as_many else 6
    counts = np.array([1, 3, samples - 4]) if requests > 1 else np.array([samples])
    own = input_of(samples, seed=1).select([0, 1, 2])
    batch = ModelInput(samples, (own, shared), (), repeats=counts if requests > 1 else None)
    packed = Packed.of(0, np.zeros_like(lengths), lengths, counts)
    padded_rows, packed_rows = (
        front.look_up(batch, rows=samples, packed=layout, may_default=True)
        for layout in (None, packed)
    )
    for table, took in padded_rows.work.defaults.items():
        np.testing.assert_array_equal(packed_rows.work.defaults[table], took)
    assert padded_rows.work.defaults.keys() == packed_rows.work.defaults.keys() >= {"user"}
    clicks, pages = packed_rows.sequences
    expected = [
        rows[:n] for rows, n in zip(padded_rows.sequences[0].rows, packed.places, strict=True)
    ]
    assert torch.equal(clicks.rows[0], torch.cat(expected))
    assert torch.equal(pages.rows, padded_rows.sequences[1].rows)
    assert packed_rows.work.rows_saved == padded_rows.work.rows_saved > 0


@pytest.mark.parametrize(
    ("tables", "may_default"), [(("ads", "user", "page"), True), (tuple(ROWS), False)]
)
def test_a_lost_host_fails_lookups_without_leave_or_with_a_table_that_declares_no_row(
    deploy: Deploy, tables: Sequence[str], may_default: bool
) -> None:
    # Host 1 has `country` and `user`.
    front = front_without(deploy("ranks"), 1, tables)
    with pytest.raises(ShardHostError, match="shard host 1: its tables are lost"):
        front.look_up(inputs()[0], rows=8, may_default=may_default)


def test_a_table_without_a_default_row_fails_no_batch_that_does_not_need_it(deploy: Deploy) -> None:
    front = front_without(deploy("ranks"), 1, ("ads", "user", "page"))
    [group] = inputs()[0].groups
    country = [f for f in FEATURES if SPEC.features[f].table.name == "country"]
    kept = np.repeat(~np.isin(FEATURES, country), group.lengths.sum(axis=1))
    lengths = group.lengths.copy()
    lengths[country] = 0
    assert group.weights is not None
    without = replace(
        group, values=group.values[kept], lengths=lengths, weights=group.weights[kept]
    )
    found = front.look_up(ModelInput(6, (without,), ()), rows=8, may_default=True)
    assert list(found.work.defaults) == ["user"]
