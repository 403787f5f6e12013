"""Batches run on a model, and what running them tells."""

from pathlib import Path

import numpy as np

from sharded_infer.executor import run_inline
from sharded_infer.golden import generate_samples
from sharded_infer.model import open_model


def test_running_inline_tells_scores_times_and_ids_outside(published_version: Path) -> None:
    model = open_model(published_version)
    model_input = generate_samples(model.spec, 4)
    group = model_input.groups[0]
    names = [feature.name for feature in model.spec.features]
    # The first ids of the features `country` (ignored) and `user` (wrapped).
    starts = np.concatenate([[0], np.cumsum(group.lengths.sum(axis=1))])
    for name in ("country", "user"):
        assert group.lengths[names.index(name)].sum() > 0
        group.values[starts[names.index(name)]] = 1000
    execution = run_inline(model, model_input)
    assert execution.ids_outside == 2
    assert execution.lookup_seconds > 0
    assert execution.tower_seconds > 0
    wanted = model.run(model_input)
    for score, name in zip(execution.scores, ("click", "rating"), strict=True):
        assert np.array_equal(score, wanted[name])
