"""Of each kind of file one that was damaged, or that a later release wrote, is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sharded_infer import Repository, load_spec, open_changes, open_model, read_calibration
from sharded_infer.errors import ShardedInferError
from sharded_infer.planning.topology_file import parse_topology
from tests.attacks.test_artifact import listed_anew
from tests.compatibility.corpus import Corpus, copied, releases, stored
from tests.support.manifest_file import edit_manifest

NEWEST = releases()[-1]
LATER_FORMAT = 3


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return copied(NEWEST, tmp_path / "corpus")


class Kind(NamedTuple):
    """A kind of file: one of it, what reads it, and what errors may name instead of the file."""

    file: str
    read: Callable[[Corpus], object]
    place: str | None = None


def _version(model: str, number: int) -> Callable[[Corpus], object]:
    return lambda corpus: open_model(corpus.path(model, number))


def _signed(corpus: Corpus) -> object:
    keys = [corpus.files / "publisher.pub.pem"]
    return Repository(corpus.models, trusted_keys=keys).open("buckets", 1)


def _calibration(name: str) -> Callable[[Corpus], object]:
    spec = Repository(stored(NEWEST).models).manifest("formats", 1).model_spec()
    return lambda corpus: read_calibration(spec, corpus.files / name)


KINDS = {
    "manifest": Kind("models/formats/1/manifest.json", _version("formats", 1)),
    "table": Kind("models/formats/1/tables/int4-00000.safetensors", _version("formats", 1)),
    "hashes of blocks": Kind(
        "models/formats/1/tables/int8-00000.safetensors.blocks", _version("formats", 1)
    ),
    "tower": Kind("models/tower_int8/1/tower.pt2", _version("tower_int8", 1)),
    "golden requests": Kind("models/formats/2/golden.safetensors", _version("formats", 2)),
    "plan": Kind(
        "models/hosts/1/plans/front-and-hosts.json",
        lambda c: open_model(c.path("hosts", 1), topology="front-and-hosts"),
    ),
    "report": Kind("models/formats/1/report.json", _version("formats", 1)),
    "places of rows": Kind("models/ordered/1/row_places/item.places", _version("ordered", 1)),
    "id map": Kind("models/raw/1/id_maps/item.index", _version("raw", 1)),
    "changed rows": Kind("models/fresh/2/overlays/*.safetensors", _version("fresh", 2)),
    "signatures": Kind("models/buckets/signatures/*.json", _signed),
    "labels": Kind(
        "models/hosts/labels.json", lambda c: Repository(c.models).label_history("hosts")
    ),
    "calibration": Kind("files/calibration.safetensors", _calibration("calibration.safetensors")),
    "calibration lines": Kind(
        "files/calibration.jsonl", _calibration("calibration.jsonl"), place="line 1"
    ),
    "statistics": Kind("files/formats.toml", lambda c: load_spec(c.files / "formats.toml")),
    "costs": Kind("files/measured.toml", lambda c: parse_topology(f"{c.files}/measured.toml")),
    "disk": Kind("files/with-a-disk.toml", lambda c: parse_topology(f"{c.files}/with-a-disk.toml")),
    "changes": Kind(
        "files/changes.safetensors", lambda c: open_changes(c.files / "changes.safetensors")
    ),
}


def _path(corpus: Corpus, kind: str) -> Path:
    (found,) = corpus.folder.glob(KINDS[kind].file)
    return found


def _refused(corpus: Corpus, kind: str, words: str = ".") -> None:
    with pytest.raises(ShardedInferError, match=words) as raised:
        KINDS[kind].read(corpus)
    names = [_path(corpus, kind).name, KINDS[kind].place]
    assert any(name in str(raised.value) for name in names if name is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_read_and_refused_when_altered_or_cut(corpus: Corpus, kind: str) -> None:
    KINDS[kind].read(corpus)
    path = _path(corpus, kind)
    content = path.read_bytes()
    # Of a text its first letter, of another file the length of its header.
    path.write_bytes(bytes([content[0] ^ 0x80]) + content[1:])
    _refused(corpus, kind)
    # A text may end in a number, which is one without its last digits too.
    is_text = path.suffix in (".toml", ".jsonl")
    path.write_bytes(content[: content.index(b'"') + 1 if is_text else len(content) - 7])
    _refused(corpus, kind)


def _later(change: dict[str, Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return write


def _later_line(line: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(f"{line}\n{path.read_text()}")


def _of_manifest(**change: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        edit_manifest(path.parent, lambda document: document.update(change))

    return write


def _later_plan(path: Path) -> None:
    _later({"tiers": []})(path)
    listed_anew(path.parents[1], f"plans/{path.name}")


def _later_index(path: Path) -> None:
    content = bytearray(path.read_bytes())
    assert content[8] == 1  # the version of an index
    content[8] = 2
    path.write_bytes(content)
    listed_anew(path.parents[1], f"id_maps/{path.name}")


def _later_sample(path: Path) -> None:
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"later": 1}), *others]))


@pytest.mark.parametrize(
    ("kind", "write", "words"),
    [
        (
            "manifest",
            _of_manifest(format_version=LATER_FORMAT),
            "format_version: expected 1 or 2, got '3'; sharded-infer .* wrote it; upgrade",
        ),
        ("manifest", _of_manifest(tiers=[]), "manifest.json: tiers: Unexpected keyword argument"),
        ("plan", _later_plan, "front-and-hosts.json: .*tiers: Unexpected keyword argument"),
        ("id map", _later_index, "item.index: .*version"),
        ("signatures", _later({"format_version": 2}), "format_version"),
        ("labels", _later({"tiers": {}}), "labels.json: .*expected a version, got"),
        ("calibration lines", _later_sample, "'later'"),
        ("statistics", _later_line("tiers = 2"), "formats.toml: tiers: Unexpected"),
        ("costs", _later_line("tiers = 2"), "measured.toml: tiers: Unexpected"),
    ],
    ids=lambda value: value if isinstance(value, str) and value in KINDS else "",
)
def test_what_a_later_release_wrote_is_refused_by_the_name_of_the_field(
    corpus: Corpus, kind: str, write: Callable[[Path], None], words: str
) -> None:
    write(_path(corpus, kind))
    _refused(corpus, kind, words)
