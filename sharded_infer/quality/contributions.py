"""The part of each table's format in the differences of scores."""

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

    Args:
        model_input: the first 1024 samples are used.

    Returns:
        The 32 tables with the largest squared error of pooled embeddings, by mean difference of
        scores, the largest first.
    """
    widths = [feature.table.dim for feature in model.spec.features]
    owners = [feature.table.name for feature in model.spec.features]
    errors = dict.fromkeys(owners, 0.0)
    kept = list(batches(model_input, _CONTRIBUTING_SAMPLES))
    for batch in kept:
        trained, rounded = model.pooled(batch, [TRAINED, published])
        squares = torch.split((rounded - trained).square_().sum(0), widths)
        for owner, part in zip(owners, squares, strict=True):
            errors[owner] += float(part.sum())
    worst = sorted((n for n in errors if errors[n]), key=lambda n: -errors[n])
    differences: dict[str, list[NDArray[np.float64]]] = {
        name: [] for name in worst[:_CONTRIBUTING_TABLES]
    }
    repeats = torch.tensor(widths)
    columns = {
        name: torch.tensor([owner == name for owner in owners]).repeat_interleave(repeats)
        for name in differences
    }
    # Pooled again: kept from above, wide models' embeddings would exceed the memory bound.
    for batch in kept:
        trained, rounded = model.pooled(batch, [TRAINED, published])
        reference = model.score(batch, trained)
        for name, found in differences.items():
            scores = model.score(batch, torch.where(columns[name], rounded, trained))
            found.append(absolute_differences(reference, scores))
    contributions = [
        TableContribution(name, float(joined.mean()), float(joined.max()))
        for name, found in differences.items()
        if (joined := np.concatenate(found)).size
    ]
    return tuple(sorted(contributions, key=lambda c: -c.mean_score_diff))
