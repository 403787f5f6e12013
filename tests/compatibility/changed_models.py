"""Changed rows in front of a version, rows for lost hosts, and shared requests; 0.1.0 had none."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sharded_infer import (
    ChangedRows,
    ModelSpec,
    Repository,
    compact,
    open_changes,
    publish,
    publish_delta,
    write_changes,
)
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.promotion.record import Promotion
from tests.compatibility.corpus import Arrays, Corpus
from tests.compatibility.plain_models import TOPOLOGIES, rows_of, samples_of, spec_of
from tests.compatibility.towers import ExactTower

FRESH = """
name = "fresh"
[dense]
inputs = { dense = 2 }
[tower]
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[release]
max_score_shift = 0.5
max_error_rate = 0.01
max_p99_ratio = 1.5
max_unknown_ids = 0.1
[[tables]]
name = "item"
rows = 60
dim = 8
format = "int8"
out_of_range = "ignore"
[[tables]]
name = "user"
rows = 61
dim = 9
format = "int4"
pooling = "mean"
"""
HOSTS = """
name = "hosts"
[dense]
inputs = { dense = 2 }
[tower]
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[serving]
memory = "map"
remote_sums = "bf16"
[[tables]]
name = "user"
rows = 50
dim = 8
default_row = "zeros"
[[tables]]
name = "item"
rows = 60
dim = 4
format = "fp16"
default_row = [0.5, -0.25, 1.0, 0.0]
"""
FRONT_AND_HOSTS = """name = "front-and-hosts"
network_bandwidth = 1.25e9
[front]
host = 0
call_seconds = 8e-5
round_trip_seconds = 1.2e-4
[[devices]]
card = "cpu"
host = 0
memory = "0.7KB"
[[devices]]
card = "cpu"
count = 2
host = 1
memory = "1KB"
"""


def publish_fresh(repository: Path, folder: Path, files: Path) -> Arrays:
    """A version, two with changes of it and one that has them all; returns a request.

    The first changes are kept as `changes.safetensors` in `files`.
    """
    spec = spec_of(FRESH, folder)
    request = samples_of(spec, seed=41)
    # Rows that come with the changes too: the first version leaves these ids out.
    request["item"][::3] = 60 + np.arange(len(request["item"][::3])) % 5
    publish(
        spec,
        rows_of(spec, seed=42),
        _tower(spec, seed=43),
        repository,
        topologies=TOPOLOGIES[:2],
        samples=samples_of(spec, seed=44),
    )
    first = _changes(45, item=(8, [3, 7, 11, *range(60, 65)]), user=(9, [0, 30]))
    write_changes(first, files / "changes.safetensors")
    publish_delta("fresh", first, repository, followed="step_9.safetensors")
    second = _changes(46, item=(8, [7, 62]), user=(9, [1]))
    publish_delta("fresh", second, repository, tower=_tower(spec, seed=47), note="hourly")
    compact(repository, "fresh")
    return request


def publish_hosts(repository: Path, folder: Path, files: Path) -> Arrays:
    """Two versions, planned for a front and a host, with rows for lost hosts; a request."""
    (files / "front-and-hosts.toml").write_text(FRONT_AND_HOSTS)
    spec = spec_of(HOSTS, folder)
    for seed in (51, 52):
        publish(
            spec,
            rows_of(spec, seed),
            _tower(spec, seed),
            repository,
            topologies=(*TOPOLOGIES[:1], str(files / "front-and-hosts.toml")),
            samples=samples_of(spec, seed=53),
        )
    return samples_of(spec, seed=54)


def share_requests(repository: Path) -> None:
    """Labels with weights, and labels during a promotion after one that was taken back."""
    labels = Repository(repository)
    for model in ("fresh", "hosts"):
        labels.set_label(model, "stable", 1)
        labels.set_label(model, "canary", 2)
    labels.set_weights("fresh", {"stable": 90, "canary": 10})
    labels.set_weights("fresh", {"stable": 95, "canary": 5})
    labels.change_labels("hosts", _promote)


def later_values(corpus: Corpus) -> dict[str, Any]:
    """What this release reads in files of changed rows, in weights of labels and in promotions."""
    repository = Repository(corpus.models)
    labels = {model: repository.label_history(model) for model in ("fresh", "hosts")}
    values = {
        "changes": {
            name: {"ids": rows.ids.tolist(), "values": _numbers(rows.values)}
            for name, rows in open_changes(corpus.files / "changes.safetensors").items()
        },
        "weights": {
            model: [dict(one) for one in (found.weights, *found.past_weights)]
            for model, found in labels.items()
        },
        "promotions": {
            model: {
                "promotion": found.promotion and asdict(found.promotion),
                "ended": {name: [asdict(o) for o in ended] for name, ended in found.ended.items()},
            }
            for model, found in labels.items()
        },
    }
    as_stored: dict[str, Any] = json.loads(json.dumps(values))
    return as_stored


def _numbers(rows: Tensor | None) -> list[list[float]] | None:
    return None if rows is None else rows.tolist()


def _promote(labels: Labels) -> Labels:
    promotion = Promotion(
        source="canary",
        target="stable",
        version=2,
        before=1,
        steps=(1, 5, 25),
        step=1,
        since=1_790_000_000.5,
        watch_seconds=600,
        by="ci/4711/8f0c1b7d",
        until=1_790_000_100.25,
    )
    tried = labels.promoting(promotion).taken_back("3% of the requests failed", 1_780_000_000.0)
    return tried.promoting(promotion)


def _changes(seed: int, **tables: tuple[int, list[int]]) -> dict[str, ChangedRows]:
    """Drawn rows, by table of its dim and the rows' numbers."""
    generator = np.random.default_rng(seed)
    return {
        name: ChangedRows(
            np.array(rows),
            torch.from_numpy(generator.standard_normal((len(rows), dim), np.float32)),
        )
        for name, (dim, rows) in tables.items()
    }


def _tower(spec: ModelSpec, seed: int) -> ExactTower:
    return ExactTower(spec.embedding_width + sum(spec.dense.inputs.values()), 16, seed)
