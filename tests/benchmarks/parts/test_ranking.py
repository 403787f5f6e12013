"""`benchmarks ranking`, as users run it."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.parts.ranking import RankingKind, ranking_model
from serving.bench.workloads.dlrm_v2 import one_user
from serving.bench.workloads.requests import request_message
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.engines.model import open_model
from sharded_infer.specs.precision import Precision
from tests.benchmarks.conftest import Measure


def test_it_measures_both_forms_of_each_model_and_precision(measure_apart: Measure) -> None:
    words = ("--model", "deepfm", "--model", "two-tower", "--precision", "fp32")
    more = ("--precision", "int8", "--pairs", 270, "--rows", 50, "--requests", 3)
    out, fields = measure_apart("ranking", *words, *more)
    assert "20 of 26 features the user's" in out
    measured = fields["measurements"]
    assert [(one["model"], one["precision"]) for one in measured] == [
        (model, precision) for model in ("deepfm", "two-tower") for precision in ("fp32", "int8")
    ]
    for one in measured:
        assert min(one["every_pair_seconds"], one["once_seconds"]) > 0
        assert one["gain"] == pytest.approx(one["every_pair_seconds"] / one["once_seconds"])
        # Both forms mean the same, and are not computed in the same way.
        assert one["largest_difference"] < 0.01 * one["score_spread"]


@pytest.mark.parametrize("kind", list(RankingKind))
def test_both_messages_have_the_same_candidates_and_one_user(
    kind: RankingKind, tmp_path: Path
) -> None:
    model = ranking_model(kind, Precision.FP32, rows=20)
    spec = open_model(model.publish(tmp_path)).spec
    reader = InputReader(spec, max_batch=5)
    drawn = model.draw(np.random.default_rng(1), 5)
    once, every = (
        reader.read_message(request_message(model.name, one_user(drawn, expanded=not once)))
        for once in (True, False)
    )
    assert [group.batch_size for group in once.groups] == [5, 1]
    assert [len(group.features) for group in once.groups] == [6, 20]
    [group] = every.groups
    assert group.lengths.shape == (26, 5)
    assert np.array_equal(group.lengths[6:, 0], once.groups[1].lengths[:, 0])
    own = once.groups[0].values
    assert np.array_equal(group.values[: len(own)], own)
