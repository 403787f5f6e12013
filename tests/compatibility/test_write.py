"""The script that writes the corpus of a release writes what is stored of the newest."""

import importlib.metadata
from pathlib import Path

from packaging.version import Version

from tests.compatibility.corpus import FOLDER, Corpus, releases
from tests.compatibility.test_artifacts import check_scores
from tests.compatibility.write import write_corpus


def test_the_newest_release_is_written_again_with_the_same_scores_and_values(
    tmp_path: Path,
) -> None:
    stored, written = Corpus(FOLDER / releases()[-1]), Corpus(tmp_path / "corpus")
    write_corpus(written, measured=stored.files / "measured.toml")
    assert written.versions() == stored.versions()
    for model, version in stored.versions():
        check_scores(model, written.scores(model, version), stored.scores(model, version))
    assert written.values() == stored.values()


def test_the_newest_corpus_is_no_older_than_the_project() -> None:
    assert Version(importlib.metadata.version("sharded-infer")) <= Version(releases()[-1])
