"""Samples, statistics, costs, labels and changes of every release give the values they gave."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharded_infer import (
    ModelSpec,
    Repository,
    load_spec,
    open_changes,
    open_model,
    read_calibration,
    statistics_of,
)
from sharded_infer.planning.topology_file import parse_topology
from tests.compatibility.corpus import Corpus, releases, stored

CORPORA = [stored(release) for release in releases()]
PLAIN = ("calibration", "statistics", "labels", "history")
LATER = ("changes", "weights", "promotions")


def plain_values(corpus: Corpus) -> dict[str, Any]:
    spec = Repository(corpus.models).open("formats", 1).manifest.model_spec()
    files = ("calibration.safetensors", "calibration.jsonl")
    repository = Repository(corpus.models)
    samples = read_calibration(spec, corpus.files / files[0]).model_input
    return {
        "calibration": {name: _samples(spec, corpus.files / name) for name in files},
        "statistics": {name: asdict(s) for name, s in statistics_of(spec, samples).items()},
        "labels": {m: repository.labels(m) for m in repository.models()},
        "history": {m: repository.label_history(m).history for m in repository.models()},
    }


def _samples(spec: ModelSpec, path: Path) -> dict[str, Any]:
    """Labels, reference scores and inputs; an unknown label is None."""
    calibration = read_calibration(spec, path)
    (batch,) = calibration.model_input.groups
    return {
        "labels": {
            name: [None if np.isnan(label) else label for label in labels.tolist()]
            for name, labels in calibration.labels.items()
        },
        "references": {name: scores.tolist() for name, scores in calibration.references.items()},
        "values": batch.values.tolist(),
        "lengths": batch.lengths.tolist(),
        "weights": None if batch.weights is None else batch.weights.tolist(),
        "dense": [array.tolist() for array in calibration.model_input.dense],
    }


def later_values(corpus: Corpus) -> dict[str, Any]:
    """What this code reads in changed rows, weights of labels and promotions; 0.1.0 had none."""
    repository = Repository(corpus.models)
    labels = {model: repository.label_history(model) for model in ("fresh", "hosts")}
    changes = open_changes(corpus.files / "changes.safetensors")
    return {
        "changes": {
            name: {
                "ids": rows.ids.tolist(),
                "values": None if rows.values is None else rows.values.tolist(),
            }
            for name, rows in changes.items()
        },
        "weights": {
            model: [dict(weights) for weights in (history.weights, *history.past_weights)]
            for model, history in labels.items()
        },
        "promotions": {
            model: {
                "promotion": history.promotion and asdict(history.promotion),
                "ended": {
                    name: [asdict(outcome) for outcome in outcomes]
                    for name, outcomes in history.ended.items()
                },
            }
            for model, history in labels.items()
        },
    }


def as_stored(values: Any) -> Any:
    return json.loads(json.dumps(values))


@pytest.fixture(params=CORPORA, ids=lambda corpus: corpus.release)
def corpus(request: pytest.FixtureRequest) -> Corpus:
    found: Corpus = request.param
    return found


@pytest.mark.parametrize("section", PLAIN)
def test_plain_files_have_the_values_that_their_release_read(corpus: Corpus, section: str) -> None:
    values = corpus.values()[section]
    assert values and as_stored(plain_values(corpus)[section]) == values


@pytest.mark.parametrize("section", LATER)
@pytest.mark.parametrize("corpus", CORPORA[1:], ids=lambda corpus: corpus.release)
def test_later_files_have_the_values_that_their_release_read(corpus: Corpus, section: str) -> None:
    values = corpus.values()[section]
    assert values and as_stored(later_values(corpus)[section]) == values


def test_no_value_is_left_unread(corpus: Corpus) -> None:
    assert set(corpus.values()) <= {*PLAIN, *LATER}


def test_a_description_with_statistics_is_that_of_the_published_version(corpus: Corpus) -> None:
    spec = load_spec(corpus.files / "formats.toml")
    published = Repository(corpus.models).manifest("formats", 1).model_spec()
    assert spec.statistics == published.statistics and len(spec.statistics) == 8
    assert [(table.name, table.rows, table.dim) for table in spec.tables] == [
        (table.name, table.rows, table.dim) for table in published.tables
    ]
    for section in ("gate", "dense"):
        assert getattr(spec, section) == getattr(published, section)


@pytest.mark.parametrize("topology", ["two-hosts", "measured"])
def test_costs_are_those_that_the_release_planned_with(corpus: Corpus, topology: str) -> None:
    read = parse_topology(str(corpus.files / f"{topology}.toml"))
    assert read == open_model(corpus.path("formats", 1), topology=topology).plan.topology


@pytest.mark.parametrize("corpus", CORPORA[1:], ids=lambda corpus: corpus.release)
def test_costs_of_a_front_are_those_that_the_release_planned_with(corpus: Corpus) -> None:
    read = parse_topology(str(corpus.files / "front-and-hosts.toml"))
    plan = open_model(corpus.path("hosts", 1), topology="front-and-hosts").plan
    assert read == plan.topology and read.front is not None
