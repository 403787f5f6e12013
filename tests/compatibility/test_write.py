"""The script that writes the corpus of a release writes what is stored of the newest."""

import importlib.metadata
from pathlib import Path

from packaging.version import Version

from tests.compatibility.archive import archive_of, pack, unpacked
from tests.compatibility.corpus import FOLDER, Corpus, releases, stored
from tests.compatibility.test_artifacts import check_scores
from tests.compatibility.write import write_corpus


def test_the_newest_release_is_written_again_with_the_same_scores_and_values(
    tmp_path: Path,
) -> None:
    newest, written = stored(releases()[-1]), Corpus(tmp_path / "corpus")
    write_corpus(written, measured=newest.files / "measured.toml")
    assert written.versions() == newest.versions()
    for model, version in newest.versions():
        check_scores(model, written.scores(model, version), newest.scores(model, version))
    assert written.values() == newest.values()


def test_an_archive_has_the_same_bytes_whenever_it_is_packed(tmp_path: Path) -> None:
    for release in releases():
        archive = archive_of(FOLDER, release)
        pack(unpacked(archive), tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == archive.read_bytes()


def test_the_newest_corpus_is_no_older_than_the_project() -> None:
    assert Version(importlib.metadata.version("sharded-infer")) <= Version(releases()[-1])
