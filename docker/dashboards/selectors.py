"""Label matchers with the dashboards' variables."""

SERVER = ('job=~"$job"', 'instance=~"$instance"')
MODEL = (*SERVER, 'model=~"$model"')
VERSION = (*MODEL, 'version=~"$version"')


def of_server(metric: str, *more: str) -> str:
    """Selector of a metric without model labels, with more matchers."""
    return f"{metric}{{{','.join((*SERVER, *more))}}}"


def of_model(metric: str, *more: str) -> str:
    """Selector of a metric labelled by model, with more matchers."""
    return f"{metric}{{{','.join((*MODEL, *more))}}}"


def of_version(metric: str, *more: str) -> str:
    """Selector of a metric labelled by model and version, with more matchers."""
    return f"{metric}{{{','.join((*VERSION, *more))}}}"


def rate(selector: str) -> str:
    """A counter's growth per second, over the shortest time that the scrapes allow."""
    return f"rate({selector}[$__rate_interval])"


def quantile(share: float, histogram: str, *by: str) -> str:
    """Percentile (`share` 0 to 1) over all replicas, from the sum of their buckets.

    The histogram is labelled by model and version; `by` are labels with percentiles of their own.
    """
    kept = ", ".join((*by, "le"))
    buckets = rate(of_version(f"{histogram}_bucket"))
    return f"histogram_quantile({share:g}, sum by ({kept}) ({buckets}))"
