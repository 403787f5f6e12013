"""Words on what some samples have in common, for messages."""

import numpy as np
from numpy.typing import NDArray

from kernels.wording import counted, listed
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import ModelSpec

_NAMED = 3  # traits


def shared_traits(spec: ModelSpec, samples: ModelInput, chosen: NDArray[np.bool_]) -> str:
    """The end of a sentence on numbers of ids, and rows, that the chosen samples alone have.

    Args:
        samples: one jagged batch of all features, as the model reads it.
        chosen: `[B]`.
    """
    if len(samples.groups) != 1 or chosen.all() or not chosen.any():
        return ""
    group, start = samples.groups[0], 0
    traits: dict[str, None] = {}
    for feature, lengths in zip(spec.table_features, group.lengths, strict=False):
        end = start + int(lengths.sum())
        most = int(lengths[chosen].max())
        if most < int(lengths[~chosen].min()):
            ids = f"at most {counted(most, 'id')}" if most else "no ids"
            traits[f"{ids} of {feature.name!r}"] = None
        # A row of a single sample is often its alone.
        elif chosen.sum() > 1:
            for row in _own_rows(group.values[start:end], lengths, chosen):
                traits[f"row {row} of table {feature.table.name!r}"] = None
        start = end
    return f"; they alone have {listed(list(traits)[:_NAMED])}" if traits else ""


def _own_rows(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], chosen: NDArray[np.bool_]
) -> list[int]:
    """The first row that all chosen samples have, and no other."""
    samples = np.repeat(np.arange(len(lengths)), lengths)
    pairs = np.unique(np.stack([rows, samples], 1), axis=0)
    distinct, counts = np.unique(pairs[:, 0], return_counts=True)
    of_chosen, in_chosen = np.unique(pairs[chosen[pairs[:, 1]], 0], return_counts=True)
    everywhere = of_chosen[in_chosen == chosen.sum()]
    own = everywhere[counts[np.searchsorted(distinct, everywhere)] == chosen.sum()]
    first: list[int] = own[:1].tolist()
    return first
