"""Answers of predict calls."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Response parameter with the tables whose default rows were used, separated by commas.
DEFAULT_TABLES = "sharded_infer_default_tables"


class Answer(NamedTuple):
    """A serialized answer; `json_bytes` of JSON come before outputs in binary, if there are any."""

    body: bytes
    json_bytes: int = 0


def score_bytes(scores: NDArray[np.float32]) -> bytes:
    """Bytes of an output, fp32 `[B]` or `[B, K]`: row-major, little-endian."""
    return scores.astype("<f4", copy=False).tobytes()
