"""The area under the ROC curve, by ranks."""

import numpy as np
from numpy.typing import ArrayLike

from sharded_infer.errors import InputError


def auc(labels: ArrayLike, scores: ArrayLike) -> float:
    """The probability that a positive outscores a negative, ties counting one half.

    The Mann-Whitney form of Hanley and McNeil 1982, "The meaning and use of the area under a
    receiver operating characteristic (ROC) curve", Radiology 143(1): `(R - P (P + 1) / 2) / (P *
    Q)`, for P positives of rank sum R and Q negatives, tied scores sharing the mean of their ranks.
    Computed in float64. Labels `[N]` are 0 or 1, scores `[N]` finite, with both classes; InputError
    otherwise.
    """
    truth = np.asarray(labels, dtype=np.float64)
    values = np.asarray(scores, dtype=np.float64)
    if truth.ndim != 1 or truth.shape != values.shape:
        raise InputError(
            f"labels and scores must both be [N], got shapes {truth.shape} and {values.shape}"
        )
    if not np.isin(truth, (0.0, 1.0)).all():
        raise InputError("labels must be 0 or 1 only")
    if not np.isfinite(values).all():
        position = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"scores must be finite, got {values[position]} at position {position}")
    positives = int(truth.sum())
    negatives = truth.size - positives
    if positives == 0 or negatives == 0:
        raise InputError(
            f"an AUC needs both classes, got {positives} positives and {negatives} negatives"
        )
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    # A group of tied scores holds the ranks that end at its cumulative size, one-based.
    mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2.0
    rank_sum = float(mean_ranks[group][truth == 1.0].sum())
    return (rank_sum - positives * (positives + 1) / 2.0) / (positives * negatives)
