"""A running server's metrics page, as anybody may read it."""

from collections.abc import Iterator
from urllib.error import URLError
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from sharded_infer.errors import InputError

_TIMEOUT_SECONDS = 5.0


def scraped_samples(url: str) -> Iterator[Sample]:
    """The page's samples, with their names, labels and values.

    Args:
        url: of the page.

    Raises:
        InputError: it cannot be had.
    """
    try:
        with urlopen(url, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - the user's own URL
            text = response.read().decode()
    except (OSError, URLError, ValueError) as error:
        raise InputError(f"metrics page {url}: cannot be had: {error}") from error
    for family in text_string_to_metric_families(text):
        yield from family.samples
