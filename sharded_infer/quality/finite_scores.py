"""The cause of NaN and infinity in the fp32 model's scores: tables, inputs or the tower."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer.errors import TowerError, WeightsError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model


def check_finite_scores(model: Fp32Model, model_input: ModelInput) -> None:
    """Score one jagged batch with the trained model; TowerError as `refuse_nonfinite`."""
    [embeddings] = model.pooled(model_input, [TRAINED])
    # Non-finite rows are refused, by number, at encoding.
    if torch.isfinite(embeddings).all():
        refuse_nonfinite(model, model_input, embeddings, model.score(model_input, embeddings))


def refuse_nonfinite(
    model: Fp32Model,
    model_input: ModelInput,
    embeddings: Tensor,
    scores: Mapping[str, NDArray[np.float32]],
) -> None:
    """Refuse scores that are NaN or infinite, and name the cause.

    `embeddings` are the pooled ones, fp32 `[B, width]`.

    Raises:
        WeightsError: pooled embeddings are not finite; names the feature and the table.
        TowerError: the tower's inputs are finite and its output is not; names the output, and any
            non-finite parameter.
    """
    for output, found in scores.items():
        strange = ~np.isfinite(found.reshape(len(found), -1))
        if not strange.any():
            continue
        sample, column = np.argwhere(strange)[0].tolist()
        value = found.reshape(len(found), -1)[sample, column]
        message = f"model {model.spec.name!r}: output {output!r} of the trained model is {value}"
        _refuse_embeddings(model, model_input, embeddings[sample], message)
        for name, numbers in zip(model.spec.dense.inputs, model_input.dense, strict=True):
            if not np.isfinite(numbers[sample]).all():
                raise TowerError(f"{message} for a sample whose {name!r} is not finite either")
        raise TowerError(
            f"{message} where the pooled embeddings and the dense inputs are finite: the tower "
            f"makes it{_of_parameter(model.tower)}"
        )


def _refuse_embeddings(
    model: Fp32Model, model_input: ModelInput, row: Tensor, message: str
) -> None:
    columns = model.columns(model_input)
    parts = torch.split(row, [count for _, count in columns])
    for (feature, _), part in zip(columns, parts, strict=True):
        if not torch.isfinite(part).all():
            raise WeightsError(
                f"{message}: the pooled embeddings of {feature.name!r} (table "
                f"{feature.table.name!r}) are not finite"
            )


def _of_parameter(tower: nn.Module) -> str:
    for name, tensor in (*tower.named_parameters(), *tower.named_buffers()):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"; its parameter {name!r} holds NaN or infinity"
    return (
        "; all its parameters are finite, so an operation in it does, such as the logarithm of a "
        "negative number or a division by 0"
    )
