"""Feature statistics, counted from samples."""

from dataclasses import replace
from itertools import chain

import numpy as np

from sharded_infer.samples.request import model_input_of
from sharded_infer.specs.feature_statistics import FeatureStatistics, count_statistics
from sharded_infer.specs.id_steps import apply_steps
from sharded_infer.specs.model_spec import ModelSpec


def statistics_of(spec: ModelSpec, samples: object) -> dict[str, FeatureStatistics]:
    """Pooling factor, skew and histogram of every feature; padding does not count.

    Rows after `id_steps` are counted. Features with raw ids have no histogram, unless
    `mapped_samples` mapped them.

    Args:
        samples: in any of the forms of `columns_of`, with missing features as empty bags; or a
            `ModelInput` of one jagged batch.

    Raises:
        RequestError: a sample does not fit the model.
    """
    model_input = model_input_of(spec, samples)
    (batch,) = model_input.groups
    ends = np.cumsum(batch.lengths.ravel()).reshape(batch.lengths.shape)
    largest: dict[str, int] = {}
    for number, feature in enumerate(spec.table_features):
        # Of several tables, the largest: the plan depends most on it.
        known = largest.setdefault(feature.name, number)
        if feature.table.rows > spec.table_features[known].table.rows:
            largest[feature.name] = number
    found = {}
    for name, number in largest.items():
        table = spec.table_features[number].table
        steps = () if model_input.ids_checked else spec.table_features[number].id_steps
        rows = apply_steps(steps, batch.values)
        # In checked sequences -1 replaces a dropped id.
        nothing = {table.padding_idx, *([-1] if model_input.ids_checked else [])}
        bags = [
            [i for i in rows[end - length : end].tolist() if i not in nothing]
            for end, length in zip(ends[number], batch.lengths[number], strict=True)
        ]
        if table.id_map is None or model_input.ids_checked:
            found[name] = count_statistics(bags, table.rows)
            continue
        # Raw ids give the frequencies of rows, not the rows.
        numbers = {raw: number for number, raw in enumerate(dict.fromkeys(chain(*bags)))}
        counted = count_statistics(([numbers[raw] for raw in bag] for bag in bags), len(numbers))
        found[name] = replace(counted, histogram=())
    return found
