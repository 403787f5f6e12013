"""The metrics page of a real server that has answered requests: every family, and what it says."""

import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2

from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.family import Detail
from serving.metrics.families.model_families import (
    IDS_MAPPED,
    IDS_UNKNOWN,
    MODEL_FAMILIES,
    RANK_ROW_BYTES,
)
from serving.metrics.families.request_families import CODES
from serving.metrics.families.server_families import PAGE_FAMILIES, SERVER_FAMILIES
from serving.metrics.families.shard_families import SHARD_FAMILIES
from serving.metrics.families.tier_families import TIER_FAMILIES
from sharded_infer.planning.plan import StoredTable
from tests.support.servers import (
    MODEL,
    Arrays,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    running_server,
)
from tests.support.waiting import until

FAMILIES = (*VERSION_FAMILIES, *MODEL_FAMILIES, *SERVER_FAMILIES, *PAGE_FAMILIES)
OF_VERSION = (("model", MODEL), ("version", "1"))
BATCH = 8
REQUESTS = 40
Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def text_of(server: RunningServer, accept: str = "text/plain") -> str:
    request = urllib.request.Request(server.metrics_url, headers={"Accept": accept})  # noqa: S310
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - our own server
        text: str = response.read().decode()
    return text


def page_of(server: RunningServer) -> Page:
    """A page, by name and sorted labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text_of(server))
        for sample in family.samples
    }


def value(page: Page, name: str, **labels: str) -> float:
    """A series of the version."""
    return page[f"sharded_infer_{name}", tuple(sorted((*OF_VERSION, *labels.items())))]


def shared_user(seed: int) -> dict[str, Any]:
    """A ranking request: one user for all samples."""
    return {**good_inputs(BATCH, seed), "user": np.array([seed % 50])}


def ids_by_table(ranker: Ranker, inputs: Arrays) -> Iterator[tuple[StoredTable, int]]:
    """Every id that a request asks for, with its table."""
    tables = ranker.model.artifact.manifest.stored_tables()
    for feature in ranker.model.spec.features:
        for one in np.ravel(inputs[feature.name]).tolist():
            yield tables[feature.table.name], one


@pytest.fixture(scope="module")
def loaded(
    ranker: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, list[dict[str, Any]]]]:
    """A server, and the requests that it has answered."""
    requests = [shared_user(n) if n % 2 else dict(good_inputs(BATCH, n)) for n in range(REQUESTS)]
    log = tmp_path_factory.mktemp("loaded") / "stderr"
    with running_server(ranker.repository, log) as server:
        with server.stub() as stub:
            for inputs in requests:
                stub.ModelInfer(infer_request(inputs))
        # The rows' share is worked out every five seconds.
        until(lambda: value(page_of(server), "hot_row_share"), "the rows' share is worked out")
        yield server, requests


Loaded = tuple[RunningServer, list[dict[str, Any]]]


def test_every_family_has_samples(loaded: Loaded) -> None:
    server, _ = loaded
    read = text_string_to_metric_families(text_of(server))
    families = {f.name.removesuffix("_total"): f for f in read}
    for family in FAMILIES:
        shown = families[family.name]
        # A server that is no front asks no shard hosts, and no table has an id map or tiers here.
        is_empty = family in (*SHARD_FAMILIES, *TIER_FAMILIES, IDS_MAPPED, IDS_UNKNOWN)
        assert bool(shown.samples) is not is_empty, family.name
        assert shown.documentation == family.help


def test_ranks_add_up_to_what_the_requests_asked_for(loaded: Loaded, ranker: Ranker) -> None:
    server, requests = loaded
    page = page_of(server)
    rows: dict[str, int] = defaultdict(int)
    row_bytes: dict[str, int] = defaultdict(int)
    for inputs in requests:
        for table, one in ids_by_table(ranker, inputs):
            for shard in ranker.model.plan.shards:
                if shard.table == table.name and shard.first_row <= one < shard.last_row:
                    rows[str(shard.rank)] += 1
                    row_bytes[str(shard.rank)] += table.row_format.row_bytes(shard.columns)
    assert set(rows) == {"0", "1"}
    busy = 0.0
    for rank in rows:
        assert value(page, "rank_rows_total", rank=rank) == rows[rank]
        assert value(page, "rank_row_bytes_total", rank=rank) == row_bytes[rank]
        busy += value(page, "rank_busy_seconds_total", rank=rank)
        held = ranker.model.rank_bytes[int(rank)]
        assert value(page, "rank_memory_bytes", rank=rank) == held
    assert 0.0 < busy < value(page, "phase_seconds_sum", phase="lookup")
    shown = {dict(key[1])["rank"] for key in page if key[0] == f"{RANK_ROW_BYTES.name}_total"}
    assert shown == {"0", "1"}


def test_rows_that_samples_shared_are_counted_as_saved(loaded: Loaded) -> None:
    server, _ = loaded
    assert value(page_of(server), "broadcast_rows_saved_total") == REQUESTS / 2 * (BATCH - 1)


def test_what_is_said_of_requests_batches_and_scores_is_plausible(loaded: Loaded) -> None:
    server, _ = loaded
    page = page_of(server)
    assert value(page, "requests_total", code="OK") == REQUESTS
    assert value(page, "latency_objective_seconds") == 0.06
    ratios = value(page, "cost_ratio_count")
    assert ratios == value(page, "batch_samples_count") == REQUESTS
    # Of wall-clock times: others may have had the cores.
    assert 0.05 < value(page, "cost_ratio_sum") / ratios < 1000
    assert value(page, "queue_oldest_seconds") == 0.0
    assert 0.0 < value(page, "hot_row_share") < 1.0
    # One response in 16 batches: three of them, each of BATCH scores and BATCH times three labels.
    for output, heads in (("score", 1), ("labels", 3)):
        assert value(page, "scores_bucket", output=output, le="+Inf") == 3 * BATCH * heads
    # One is a probability.
    below = value(page, "scores_bucket", output="score", le="0.0")
    assert (below, value(page, "scores_bucket", output="score", le="1.0")) == (0, 3 * BATCH)


def test_odd_requests_make_no_series_but_their_codes(loaded: Loaded) -> None:
    server, _ = loaded
    before = set(page_of(server))
    odd = [infer_request(good_inputs(2), model=f"no-{n}", request_id="x" * n) for n in range(5)]
    version = infer_request(good_inputs(2))
    version.model_version = "99999"
    output = infer_request(good_inputs(2))
    output.outputs.append(service_pb2.ModelInferRequest.InferRequestedOutputTensor(name="odd"))
    wrong = infer_request({**good_inputs(2), 'x"}\n': np.zeros(2, np.int64)})
    with server.stub() as stub:
        for request in (*odd, version, output, wrong):
            with pytest.raises(grpc.RpcError):
                stub.ModelInfer(request)
    new = {(name, labels) for name, labels in page_of(server) if (name, labels) not in before}
    for name, labels in new:
        assert name == "sharded_infer_requests_total"
        assert dict(labels)["code"] in CODES
        assert dict(labels)["model"] in {MODEL, "unknown"}
    assert len(new) <= 3
