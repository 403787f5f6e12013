"""Contributions of tables' formats to score differences."""

import numpy as np
import torch
from numpy.typing import NDArray

from quant.report import TableContribution
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model, Mix
from sharded_infer.quality.quality import absolute_differences, batches

_CONTRIBUTING_SAMPLES = 1024
_CONTRIBUTING_TABLES = 32


def table_contributions(
    model: Fp32Model, published: Mix, model_input: ModelInput
) -> tuple[TableContribution, ...]:
    """The effect of each table's format alone on the scores, with all others in fp32.

    The first 1024 samples are used. Returns the 32 tables with the largest squared error of pooled
    embeddings, by descending mean difference of scores.
    """
    errors = dict.fromkeys((feature.table.name for feature in model.spec.table_features), 0.0)
    kept = list(batches(model_input, _CONTRIBUTING_SAMPLES))
    for batch in kept:
        trained, rounded = model.pooled(batch, [TRAINED, published])
        columns = model.columns(batch)
        squares = torch.split((rounded - trained).square_().sum(0), [n for _, n in columns])
        for (feature, _), part in zip(columns, squares, strict=True):
            errors[feature.table.name] += float(part.sum())
    worst = sorted((n for n in errors if errors[n]), key=lambda n: -errors[n])
    differences: dict[str, list[NDArray[np.float64]]] = {
        name: [] for name in worst[:_CONTRIBUTING_TABLES]
    }
    # Pooled again: retained embeddings of wide models would exceed the memory bound.
    for batch in kept:
        trained, rounded = model.pooled(batch, [TRAINED, published])
        reference = model.score(batch, trained)
        columns = model.columns(batch)
        repeats = torch.tensor([count for _, count in columns])
        for name, found in differences.items():
            own = torch.tensor([feature.table.name == name for feature, _ in columns])
            changed = torch.where(own.repeat_interleave(repeats), rounded, trained)
            scores = model.score(batch, changed)
            found.append(absolute_differences(reference, scores))
    contributions = [
        TableContribution(name, float(joined.mean()), float(joined.max()))
        for name, found in differences.items()
        if (joined := np.concatenate(found)).size
    ]
    return tuple(sorted(contributions, key=lambda c: -c.mean_score_diff))
