"""Statistics of features, counted from samples."""

from collections.abc import Sequence

from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.sample import Sample
from sharded_infer.spec import ModelSpec
from sharded_infer.statistics import FeatureStatistics, count_statistics


def statistics_of(spec: ModelSpec, samples: Sequence[Sample]) -> dict[str, FeatureStatistics]:
    """Pooling factor, skew and histogram of every feature.

    Args:
        spec: the model.
        samples: what it is asked; a feature that a sample leaves out is an empty bag.

    Raises:
        RequestError: a sample is not one of this model's.
    """
    arrays = batch_samples(spec, samples)
    found = {}
    for feature in spec.features:
        bags: list[list[int]] = [[] for _ in samples]
        if feature.name in arrays:
            ids = arrays[feature.name].tolist()
            start = 0
            for number, length in enumerate(arrays[f"{feature.name}.lengths"].tolist()):
                bags[number] = ids[start : start + length]
                start += length
        found[feature.name] = count_statistics(bags, feature.table.rows)
    return found
