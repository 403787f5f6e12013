"""Statistics of features, counted from samples."""

from collections.abc import Sequence

from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.sample import Sample
from sharded_infer.spec import ModelSpec, TableSpec
from sharded_infer.statistics import FeatureStatistics, count_statistics


def statistics_of(spec: ModelSpec, samples: Sequence[Sample]) -> dict[str, FeatureStatistics]:
    """Pooling factor, skew and histogram of every feature; padding is not read, nor counted.

    Args:
        spec: the model.
        samples: what it is asked; a feature that a sample leaves out is an empty bag.

    Raises:
        RequestError: a sample is not one of this model's.
    """
    arrays = batch_samples(spec, samples)
    found = {}
    tables: dict[str, TableSpec] = {}
    for feature in spec.features:
        # Of several, the largest: the plan depends most on it.
        known = tables.setdefault(feature.name, feature.table)
        if feature.table.rows > known.rows:
            tables[feature.name] = feature.table
    for name, table in tables.items():
        bags: list[list[int]] = [[] for _ in samples]
        if name in arrays:
            ids = arrays[name].tolist()
            start = 0
            for number, length in enumerate(arrays[f"{name}.lengths"].tolist()):
                bag = ids[start : start + length]
                bags[number] = [i for i in bag if i != table.padding_idx]
                start += length
        found[name] = count_statistics(bags, table.rows)
    return found
