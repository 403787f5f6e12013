"""Pages of a running server's HTTP port."""

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers import MODEL, RunningServer


def samples(url: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(url))
        for sample in family.samples
    }


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - our own http URL
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain")
        text: str = response.read().decode()
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


def readiness(server: RunningServer, path: str = "/ready") -> tuple[int, str]:
    """Status and text of `/ready`, or another path; 0 without an answer."""
    try:
        url = server.metrics_url.replace("/metrics", path)
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - our own http URL
            return response.status, response.read().decode().strip()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode().strip()
    except OSError as error:
        return 0, str(error)


def metric(server: RunningServer, name: str, **labels: str) -> dict[str, float]:
    """Series of a family by the values of their other labels."""
    wanted = {("model", MODEL), *labels.items()}
    found = {}
    for (sample, pairs), value in samples(server.metrics_url).items():
        if sample == f"sharded_infer_{name}" and wanted <= set(pairs):
            found[",".join(v for _, v in sorted(set(pairs) - wanted))] = value
    return found
