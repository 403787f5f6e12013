"""The label matchers that the dashboards' variables fill in."""

SERVER = ('job=~"$job"', 'instance=~"$instance"')
MODEL = (*SERVER, 'model=~"$model"')
VERSION = (*MODEL, 'version=~"$version"')


def of_server(metric: str, *more: str) -> str:
    """A selector of a metric without model labels.

    Args:
        more: matchers besides the variables'.
    """
    return f"{metric}{{{','.join((*SERVER, *more))}}}"


def of_model(metric: str, *more: str) -> str:
    """A selector of a metric labelled by model.

    Args:
        more: matchers besides the variables'.
    """
    return f"{metric}{{{','.join((*MODEL, *more))}}}"


def of_version(metric: str, *more: str) -> str:
    """A selector of a metric labelled by model and version.

    Args:
        more: matchers besides the variables'.
    """
    return f"{metric}{{{','.join((*VERSION, *more))}}}"


def rate(selector: str) -> str:
    """What a counter grows by in a second, over as little time as the scrapes allow."""
    return f"rate({selector}[$__rate_interval])"


def quantile(share: float, histogram: str, *by: str) -> str:
    """A percentile over all replicas: their buckets are added, then it is read off the sum.

    Args:
        share: of the observations that lie below it, 0 to 1.
        histogram: the family's name, labelled by model and version.
        by: labels that get percentiles of their own.
    """
    kept = ", ".join((*by, "le"))
    buckets = rate(of_version(f"{histogram}_bucket"))
    return f"histogram_quantile({share:g}, sum by ({kept}) ({buckets}))"
