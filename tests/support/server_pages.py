"""Pages of a running server's HTTP port."""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import MODEL, RunningServer


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(url))
        for sample in family.samples
    }


def page(url: str) -> str:
    status, text, headers = fetch(url, seconds=10.0)
    if status != 200:
        raise OSError(f"{url}: status {status}")
    assert headers["Content-Type"].startswith("text/plain")
    return text


def counted(server: RunningServer, name: str, **labels: str) -> float:
    """Sum of a family's samples that have the labels."""
    wanted = set(labels.items())
    return sum(
        value
        for (sample, pairs), value in samples(server.metrics_url).items()
        if sample == name and wanted <= set(pairs)
    )


def by_worker(server: RunningServer) -> dict[str, float]:
    return {
        dict(pairs)["worker"]: value
        for (name, pairs), value in samples(server.metrics_url).items()
        if name == "sharded_infer_worker_requests_total"
    }


def fetch(
    url: str,
    data: bytes | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    tls: ssl.SSLContext | None = None,
    seconds: float = 60.0,
) -> tuple[int, str, Any]:
    """Status, body and headers of an HTTP answer, whatever it is."""
    request = urllib.request.Request(url, data, dict(headers))  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=seconds, context=tls) as answer:  # noqa: S310
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


def readiness(server: RunningServer, path: str = "/ready") -> tuple[int, str]:
    """Status and text of `/ready`, or another path; 0 without an answer."""
    try:
        status, text, _ = fetch(server.http_url + path, seconds=10.0)
    except OSError as error:
        return 0, str(error)
    return status, text.strip()


def metric(server: RunningServer, name: str, **labels: str) -> dict[str, float]:
    """Series of a family by the values of their other labels."""
    wanted = {("model", MODEL), *labels.items()}
    found = {}
    for (sample, pairs), value in samples(server.metrics_url).items():
        if sample == f"sharded_infer_{name}" and wanted <= set(pairs):
            found[",".join(v for _, v in sorted(set(pairs) - wanted))] = value
    return found
