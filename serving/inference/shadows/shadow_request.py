"""An answered request for another version to score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving.protocol.readers.input_reader import InputReader
from serving.versions.loaded_version import LoadedVersion
from sharded_infer.inputs.model_input import ModelInput

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ShadowRequest:
    """An answered request.

    Attributes:
        version: the one that answered it.
        message: as sent.
        read: reads it for another version.
        scores: fp32 `[B]` or `[B, K]` by output, of all outputs.
        seconds: for lookups and tower of the whole batch.
        has_defaults: default rows stood for rows of lost shard hosts.
    """

    version: LoadedVersion
    message: bytes
    read: Callable[[InputReader], ModelInput]
    samples: int
    scores: Mapping[str, Scores]
    seconds: float
    has_defaults: bool = False


def copied_scores(
    version: LoadedVersion, scores: Sequence[Scores], place: slice = slice(None)
) -> dict[str, Scores]:
    """Copies a part of a batch's scores by output, to outlive the batch."""
    names = version.model.spec.tower.outputs
    return {name: np.array(one[place], np.float32) for name, one in zip(names, scores, strict=True)}
