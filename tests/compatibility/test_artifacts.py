"""Versions of every release are opened, and score as the release that wrote them scored."""

import importlib.metadata

import numpy as np
import pytest
from packaging.version import Version

from kernels.machine import InstructionSet, instruction_sets
from sharded_infer import Repository
from sharded_infer.errors import ArtifactError
from tests.compatibility.corpus import Arrays, Corpus, releases, score_all, stored

CORPORA = [stored(release) for release in releases()]
VERSIONS = [
    pytest.param(corpus, model, version, id=f"{corpus.release}-{model}-{version}")
    for corpus in CORPORA
    for model, version in corpus.versions()
]
# Layers whose sums have no fixed order: torch's, of the processor.
ANY_ORDER = "operators"
ROUNDING = 1e-5
# Without a fused multiply-add a product is rounded before it is added.
UNFUSED_ROUNDING = 1e-6


def check_scores(model: str, got: Arrays, expected: Arrays) -> None:
    """Scores have the bits that are stored; where sums have no fixed order, almost."""
    assert got.keys() == expected.keys()
    has_fused = InstructionSet.AVX2 in instruction_sets()
    for name, scores in expected.items():
        assert got[name].dtype == scores.dtype and got[name].shape == scores.shape
        if model == ANY_ORDER or not has_fused:
            bound = ROUNDING if model == ANY_ORDER else UNFUSED_ROUNDING
            assert np.abs(got[name] - scores).max() < bound, name
        else:
            assert got[name].tobytes() == scores.tobytes(), name


@pytest.mark.parametrize(("corpus", "model", "version"), VERSIONS)
def test_a_version_scores_as_its_release_scored(corpus: Corpus, model: str, version: int) -> None:
    scores = score_all(corpus.path(model, version), corpus.request(model))
    check_scores(model, scores, corpus.scores(model, version))


def test_the_newest_corpus_is_no_older_than_the_project() -> None:
    assert Version(importlib.metadata.version("sharded-infer")) <= Version(releases()[-1])


def test_a_version_of_before_there_were_checksums_has_none() -> None:
    manifest = Repository(stored("0.1.0").models).manifest("before_checksums", 1)
    assert manifest.sha256 is None


def test_the_scores_of_the_corpus_tell_samples_versions_and_tables_apart() -> None:
    for corpus in CORPORA:
        first, second = corpus.scores("formats", 1), corpus.scores("formats", 2)
        assert len(np.unique(first["cpu:1/score"])) > 8
        assert not np.array_equal(first["cpu:1/score"], second["cpu:1/score"])
        # Of every column of every table some sample has another value.
        assert np.ptp(first["cpu:1/pooled"], axis=0).min() > 0.01


@pytest.mark.parametrize("corpus", CORPORA[1:], ids=lambda corpus: corpus.release)
def test_signatures_of_a_release_are_verified(corpus: Corpus) -> None:
    keys = [corpus.files / "publisher.pub.pem"]
    repository = Repository(corpus.models, trusted_keys=keys)
    for model in ("raw", "buckets"):
        for version in repository.versions(model):
            repository.verify(model, version)
    with pytest.raises(ArtifactError, match="fresh.1.manifest.json: expected a signature by key"):
        repository.open("fresh", 1)
