"""An answered request for another version to score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.protocol.codec import Codec
from serving.versions.loaded_version import LoadedVersion

Scores = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class ShadowRequest:
    """An answered request.

    Attributes:
        version: the one that answered it.
        codec: reads the message again, for another version.
        message: as received.
        size_bytes: of the message.
        scores: fp32 `[B]` or `[B, K]` by output, of all outputs.
        seconds: for lookups and tower of the whole batch.
        has_defaults: default rows stood for rows of lost shard hosts.
    """

    version: LoadedVersion
    codec: Codec[Any]
    message: Any
    size_bytes: int
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
