"""A metrics page that counts simulated requests of each version at each look."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


@dataclass(frozen=True)
class Behaviour:
    """Requests of a version at a look, of which some fail; each has 10 ids, some unknown.

    One look is enough for a step: a busy machine has time for no more.
    """

    requests: int = 400
    failed: int = 0
    seconds: float = 0.003
    score: float = 0.42
    unknown_ids: int = 0


@dataclass(eq=False)
class CountingPage:
    """The page of one server's HTTP port, with mutable behaviours and a count of its reads."""

    model: str
    behaviours: dict[int, Behaviour]
    url: str = ""
    looks: int = 0
    broken: bool = False
    totals: dict[tuple[int, str, str], float] = field(default_factory=dict)

    def read(self) -> bytes:
        self.looks += 1
        for version, one in self.behaviours.items():
            answered = one.requests - one.failed
            for name, label, count in (
                ("requests", "OK", answered),
                ("requests", "INTERNAL", one.failed),
                ("seconds", str(one.seconds), answered),
                ("scores", str(one.score), answered),
                ("batches", "", answered),
                ("rows", "", answered * (10 - one.unknown_ids)),
                ("outside", "", answered * one.unknown_ids),
            ):
                key = (version, name, label)
                self.totals[key] = self.totals.get(key, 0.0) + count
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        names = ("model", "version")
        requests = CounterMetricFamily("sharded_infer_requests", "-", labels=[*names, "code"])
        rows = CounterMetricFamily("sharded_infer_rank_rows", "-", labels=[*names, "rank"])
        outside = CounterMetricFamily("sharded_infer_ids_out_of_range", "-", labels=names)
        seconds = HistogramMetricFamily("sharded_infer_request_seconds", "-", labels=names)
        scores = HistogramMetricFamily("sharded_infer_scores", "-", labels=[*names, "output"])
        batches = HistogramMetricFamily("sharded_infer_batch_requests", "-", labels=names)
        for version in self.behaviours:
            own = [self.model, str(version)]
            counts = {
                name: {
                    label: c
                    for (v, n, label), c in self.totals.items()
                    if (v, n) == (version, name)
                }
                for name in ("requests", "seconds", "scores", "batches", "rows", "outside")
            }
            for code, count in counts["requests"].items():
                requests.add_metric([*own, code], count)
            rows.add_metric([*own, "0"], counts["rows"][""])
            outside.add_metric(own, counts["outside"][""])
            seconds.add_metric(own, _buckets(counts["seconds"], (0.001, 0.0025, 0.004, 0.01, 1)), 0)
            scores.add_metric([*own, "score"], _buckets(counts["scores"], (0.3, 0.4, 0.5, 0.8)), 0)
            batches.add_metric(own, [("+Inf", counts["batches"][""])], 0)
        yield from (requests, rows, outside, seconds, scores, batches)


def _buckets(values: dict[str, float], boundaries: tuple[float, ...]) -> list[tuple[str, float]]:
    def up_to(boundary: float) -> float:
        return sum(count for value, count in values.items() if float(value) <= boundary)

    return [*((str(one), up_to(one)) for one in boundaries), ("+Inf", up_to(float("inf")))]


@contextmanager
def counting_page(model: str, behaviours: dict[int, Behaviour]) -> Iterator[CountingPage]:
    page = CountingPage(model, behaviours)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503 if page.broken or self.path != "/metrics" else 200)
            self.end_headers()
            if not page.broken:
                self.wfile.write(page.read())

        def log_message(self, *words: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    page.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield page
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
