"""A warning, once, about samples that look padded with zeros: zeros are ids like others."""

import logging
from collections import Counter
from typing import Final

import numpy as np

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.specs.model_spec import ModelSpec

_log = logging.getLogger("sharded_infer")
# Shorter bags and fewer samples may end in zeros by chance.
_FEWEST_IDS: Final = 4
_FEWEST_SAMPLES: Final = 8
_MOST_BATCHES: Final = 64


class ZeroPadding:
    """Watches a model's first batches for features of `[B, L]` ids that end in zeros.

    Races of threads cost at most a batch more, or a second warning.
    """

    def __init__(self, spec: ModelSpec) -> None:
        # A tower that gets ids can tell padding, and one that always gets all of them expects it.
        whole = {
            name
            for sequence in spec.sequences.values()
            for name in sequence.features
            if name in sequence.ids or sequence.shortest == sequence.max_length
        }
        self._features = {
            number: feature
            for number, feature in enumerate(spec.table_features)
            if feature.name not in whole
            and feature.table.padding_idx is None
            and not feature.id_steps
        }
        self._batches = _MOST_BATCHES if self._features else 0
        self._samples: Counter[int] = Counter()
        self._padded: Counter[int] = Counter()

    def look(self, batch: ModelInput) -> None:
        """Counts the samples that end in two zeros; warns of a feature if most do."""
        if self._batches <= 0:
            return
        self._batches -= 1
        for group in batch.groups:
            ends = np.cumsum(group.lengths.ravel()).reshape(group.lengths.shape)
            for number, lengths, last in zip(group.features, group.lengths, ends, strict=True):
                if number not in self._features or not len(lengths):
                    continue
                self._samples[number] += len(lengths)
                length = int(lengths[0])
                # With lengths sent, padding is not among the ids.
                if length >= _FEWEST_IDS and (lengths == length).all():
                    ends_in_zeros = (group.values[last - 1] == 0) & (group.values[last - 2] == 0)
                    self._padded[number] += int(ends_in_zeros.sum())
                    self._warn(number, length)

    def _warn(self, number: int, length: int) -> None:
        padded, samples = self._padded[number], self._samples[number]
        if samples < _FEWEST_SAMPLES or 2 * padded <= samples:
            return
        feature = self._features.pop(number)
        _log.warning(
            "input %r: %d of %d samples are %d ids long and end in zeros, which are read as id 0: "
            "send %r with padded ids%s",
            feature.name, padded, samples, length, f"{feature.sequence or feature.name}.lengths",
            "" if feature.sequence else f", or set padding_idx = 0 of table {feature.table.name!r}",
        )  # fmt: skip
