"""Requests of a bench of sequences: lengths, and users who come again."""

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from benchmarks.sequences.sequence_traffic import (
    SequenceTraffic,
    lognormal_lengths,
    zipf_users,
)
from serving.bench.workloads.sequence_models import SEQUENCE_MODELS
from sharded_infer.specs.precision import Precision


@pytest.fixture(params=["sasrec", "hstu-small"])
def traffic(request: pytest.FixtureRequest) -> SequenceTraffic:
    model = SEQUENCE_MODELS[request.param]
    return SequenceTraffic(model, model.spec(rows=50, history=9, precision=Precision.FP32), 3)


def inputs_of(message: bytes) -> dict[str, tuple[tuple[int, ...], bytes]]:
    asked = service_pb2.ModelInferRequest.FromString(message)
    return {
        one.name: (tuple(one.shape), raw)
        for one, raw in zip(asked.inputs, asked.raw_input_contents, strict=True)
    }


def test_lengths_lie_within_their_bounds_around_their_geometric_mean() -> None:
    lengths = lognormal_lengths(4000, shortest=10, longest=1000)
    assert (lengths.min(), lengths.max()) == (10, 1000)
    assert np.median(lengths) == pytest.approx(100, rel=0.1)
    # Two standard deviations away, half of them on each side.
    assert np.mean(lengths == 1000) == pytest.approx(0.023, abs=0.01)


def test_a_request_has_one_history_of_its_length_and_all_candidates(
    traffic: SequenceTraffic,
) -> None:
    for length, message in zip((4, 9), traffic.of_lengths((4, 9)), strict=True):
        shapes = {name: shape for name, (shape, _) in inputs_of(message).items()}
        assert shapes.pop("candidate") == (3,)
        assert "history" in shapes
        assert set(shapes.values()) == {(1, length)}


def test_a_user_has_the_same_history_in_every_request_and_other_candidates(
    traffic: SequenceTraffic,
) -> None:
    once, again, other = map(inputs_of, traffic.of_users((7, 7, 8), 9, seed=1))
    later = inputs_of(traffic.of_users((7,), 9, seed=2)[0])
    histories = once.keys() - {"candidate"}
    for name in histories:
        assert once[name] == again[name] == later[name] != other[name]
    assert len({one["candidate"] for one in (once, again, later)}) == 3


def test_few_users_send_many_requests() -> None:
    users = zipf_users(10_000, users=1000, seed=0)
    assert users.min() >= 0
    assert users.max() < 1000
    _, counts = np.unique(users, return_counts=True)
    assert np.sort(counts)[-10:].sum() > 3000
    assert not np.array_equal(users, zipf_users(10_000, users=1000, seed=1))
