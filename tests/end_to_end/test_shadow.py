"""Requests that a second version scores too: what it counts, and that no client notices."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from numpy.typing import NDArray

from serving.metrics.families.model_families import SCORE_BOUNDARIES
from sharded_infer.repositories.repository import Repository
from tests.support.server_pages import counted, metric
from tests.support.servers import (
    MODEL,
    Command,
    RunningServer,
    good_inputs,
    publish_ranker,
    run,
    running_server,
)
from tests.support.traffic import ask, client_of, traffic, triton_inputs
from tests.support.waiting import until

FOLLOW = ("--poll-seconds", 0, "--follow", "labels:stable,canary")
SHADOW = (*FOLLOW, "--shadow", "canary")
SHIFT = 0.25
STABLE, SHIFTED = 1, 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions, as it is and shifted: `stable` and `canary`."""
    made = tmp_path_factory.mktemp("shadow") / "repository"
    for label, shift in (("stable", 0.0), ("canary", SHIFT)):
        publish_ranker(made, change=lambda tower: tower.labels.bias.add_(shift))  # noqa: B023
        Repository(made).set_label(MODEL, label, STABLE if label == "stable" else SHIFTED)
    return made


def scored(server: RunningServer, version: int = SHIFTED, **labels: str) -> float:
    return counted(server, "sharded_infer_shadow_requests_total", version=str(version), **labels)


def infer(client: Any, seed: int, version: str = "", batch: int = 4) -> dict[str, NDArray[Any]]:
    result = client.infer(MODEL, triton_inputs(good_inputs(batch, seed)), model_version=version)
    return {name: result.as_numpy(name) for name in ("score", "labels")}


def distance(one: Sequence[NDArray[Any]], other: Sequence[NDArray[Any]]) -> float:
    """The Kolmogorov-Smirnov statistic of scores, seen at the boundaries of their histograms."""
    first, second = (np.sort(np.concatenate([a.ravel() for a in s])) for s in (one, other))
    at = np.array(SCORE_BOUNDARIES)
    shares = [np.searchsorted(s, at, side="right") / s.size for s in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def shown_distance(server: RunningServer, output: str) -> float:
    """The same, of the buckets on the metrics page."""
    labels = {"version": str(SHIFTED), "output": output}
    shares = []
    for name in ("shadow_scores", "shadow_default_scores"):
        buckets = metric(server, f"{name}_bucket", **labels)
        ordered = [buckets[key] for key in sorted(buckets, key=lambda key: float(key))]
        shares.append(np.array(ordered) / ordered[-1])
    return float(np.abs(shares[0] - shares[1]).max())


def test_the_shadow_scores_what_the_default_answered_and_the_differences_are_seen(
    repository: Path, tmp_path: Path
) -> None:
    options = (*SHADOW, "--shadow-share", 1)
    with (
        running_server(repository, tmp_path / "log", *options) as server,
        client_of(server) as client,
    ):
        count = 30
        before = [infer(client, seed) for seed in range(count)]
        until(lambda: scored(server, code="OK") == count, "all are scored again")
        # Requests that name a version have no shadow.
        after = [infer(client, seed, "canary") for seed in range(count)]
        infer(client, 0, str(STABLE))
        assert metric(server, "shadowing") == {str(SHIFTED): 1}
        for output in ("score", "labels"):
            one, other = ([answer[output] for answer in all_] for all_ in (before, after))
            differences = np.abs(np.array(other, np.float64) - np.array(one, np.float64))
            labels = {"version": str(SHIFTED), "output": output}
            (total,) = metric(server, "shadow_score_difference_sum", **labels).values()
            (scores,) = metric(server, "shadow_score_difference_count", **labels).values()
            (largest,) = metric(server, "shadow_largest_score_difference", **labels).values()
            assert scores == differences.size
            assert total == pytest.approx(differences.sum(), rel=1e-9)
            assert largest == differences.max()
            assert shown_distance(server, output) == pytest.approx(distance(one, other))
        assert total / scores == pytest.approx(SHIFT, rel=1e-5)
        assert shown_distance(server, "labels") > 0.05 > shown_distance(server, "score") == 0
        seconds = metric(server, "shadow_seconds_count", version=str(SHIFTED))
        assert seconds == {"default": count, "shadow": count}
        watch = run("repo", "watch", server.grpc_url, "--metrics", server.metrics_url, "--json",
                    "--timeout", 0)  # fmt: skip
        by_version = {v["version"]: v["shadow"] for v in json.loads(watch.stdout)["versions"]}
        assert by_version[STABLE] is None
        shadow = by_version[SHIFTED]
        assert (shadow["scored"], shadow["failed"], shadow["dropped"]) == (count, 0, 0)
        figures = {one["output"]: one for one in shadow["outputs"]}
        assert figures["labels"] == {
            "output": "labels", "mean_difference": total / scores, "largest_difference": largest,
            "distance": pytest.approx(shown_distance(server, "labels")),
        }  # fmt: skip
        assert figures["score"]["mean_difference"] == 0
        with triton_http.InferenceServerClient(server.http_address) as http:
            http.infer(MODEL, triton_inputs(good_inputs(4, 1), triton_http))
        until(lambda: scored(server, code="OK") == count + 1, "HTTP has a shadow too")
        assert scored(server) == count + 1
    assert "internal error" not in (tmp_path / "log").read_text()


def test_under_load_all_answers_are_the_defaults_and_each_request_is_scored_or_dropped(
    repository: Path, tmp_path: Path
) -> None:
    options = (*SHADOW, "--shadow-share", 1, "--slots", 1, "--workers", 2)
    with (
        running_server(repository, tmp_path / "log", *options) as server,
        client_of(server) as client,
    ):
        expected = ask(client).scores
        assert expected is not None
        with traffic(server, clients=8, pause=0.0) as seen:
            until(lambda: scored(server, code="OK") >= 50, "some are scored again")
        assert seen.errors() == [] and seen.versions() == [STABLE]
        assert seen.wrong({STABLE: expected}) == []
        answered = counted(server, "sharded_infer_requests_total", version=str(STABLE), code="OK")
        assert answered == len(seen.answers) + 1
        # When the load has gone, what waits is scored, and each request is counted once.
        until(lambda: scored(server, code="OK") + dropped(server) == answered, "all are counted")
        # The shadow's requests are none of its version's own.
        own = counted(server, "sharded_infer_requests_total", version=str(SHIFTED))
        batches = counted(server, "sharded_infer_batch_requests_count", version=str(SHIFTED))
        assert (own, batches) == (0, 0)
    assert "internal error" not in (tmp_path / "log").read_text()


def dropped(server: RunningServer) -> float:
    reason = "sharded_infer_shadow_dropped_requests_total"
    return counted(server, reason, version=str(SHIFTED), reason="full")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--shadow", "stable"), "got 'stable' with labels:stable,canary"),
        (("--shadow", "next"), "got 'next' with labels:stable,canary"),
        (("--shadow", "canary", "--follow", "latest"), "got 'canary' with latest:1"),
        (("--shadow", "canary", "--metrics", "off"), "expected with metrics full or basic"),
    ],
)
def test_a_shadow_is_another_label_that_the_server_follows(
    repository: Path, sharded_infer: Command, options: tuple[str, ...], words: str
) -> None:
    done = sharded_infer("serve", "-r", repository, *FOLLOW, *options)
    done.refused("shadow: expected", words)
