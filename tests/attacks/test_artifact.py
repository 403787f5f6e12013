"""Versions that were damaged, or made by somebody who means harm."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.manifest import GOLDEN_NAME
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError, NotFoundError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower
from tests.quant.sources.test_checkpoint import Bomb
from tests.support.manifest_file import Document, edit_manifest

INT8 = "tables/int8-00000.safetensors"
PLAN = "plans/cpu-1.json"

Edit = Callable[[Document], object]
Alter = Callable[[Path], object]


def listed_anew(version: Path, name: str) -> None:
    """Makes the manifest agree with a file's new content."""
    content = (version / name).read_bytes()
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(version, lambda document: document["files"].update({name: record}))


def refused(version: Path, words: str) -> None:
    """Opens it in vain; words that begin with a slash follow the version's folder."""
    with pytest.raises(ArtifactError, match=f"{version}{words}" if words[:1] == "/" else words):
        open_model(version)


def test_no_byte_of_a_manifest_can_be_another(version_copy: Path) -> None:
    path = version_copy / "manifest.json"
    sound = path.read_bytes()
    assert open_artifact(version_copy).manifest.sha256 is not None
    generator = np.random.default_rng(0)
    for place in {*range(0, len(sound), 7), *range(len(sound) - 100, len(sound))}:
        altered = bytearray(sound)
        altered[place] ^= int(generator.integers(1, 256))
        path.write_bytes(altered)
        with pytest.raises(ArtifactError, match="manifest.json: "):
            open_artifact(version_copy)
    for bit in range(8):
        for place in (sound.index(b'"dense"') + 30, sound.index(b'"allowed_score_diff"') + 23):
            altered = bytearray(sound)
            altered[place] ^= 1 << bit
            path.write_bytes(altered)
            with pytest.raises(ArtifactError, match="altered: the SHA-256 of its fields is"):
                open_artifact(version_copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + b"\n",
        lambda text: text.replace(b'\n "sha256": "', b'\n "sha256":  "'),
        lambda text: text[:-2] + b', "more": 1}',
        lambda text: json.dumps(json.loads(text), sort_keys=True).encode(),
    ],
    ids=["a line end", "a space", "a field behind it", "another order"],
)
def test_a_moved_checksum_is_refused(version_copy: Path, change: Callable[[bytes], bytes]) -> None:
    path = version_copy / "manifest.json"
    head, found, tail = path.read_bytes().rpartition(b',\n "sha256"')
    path.write_bytes(change(head + found + tail))
    refused(version_copy, "manifest.json: ")


# Files: missing, extra, short, long or altered.


def _flipped(place: float) -> Alter:
    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[int(place * (len(content) - 1))] ^= 0x10
        path.write_bytes(content)

    return flip


def _replaced(make: Alter) -> Alter:
    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


def _linked(path: Path) -> None:
    same = Path(tempfile.mkdtemp()) / "same"
    path.replace(same)
    path.symlink_to(same)


# What may happen to a file that a manifest lists, and what is said of it
# (`test_version_features.py` does it to each kind of file).
DAMAGES: dict[str, tuple[Alter, str]] = {
    "missing": (Path.unlink, "missing; the manifest says"),
    "a folder": (_replaced(Path.mkdir), ".*expected a regular file, got a folder"),
    "a pipe": (_replaced(os.mkfifo), ".*expected a regular file, got a FIFO"),
    "a link": (_linked, ".*a symbolic link"),
    "a byte less": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "too short: "),
    "100 bytes less": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "too short: "),
    "empty": (lambda path: path.write_bytes(b""), "too short: 0 bytes, the manifest says"),
    "a byte more": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "too long"),
    "a bit of its first byte": (_flipped(0.0), "altered: its SHA-256 is"),
    "a bit in its middle": (_flipped(0.5), "altered: its SHA-256 is"),
    "a bit of its last byte": (_flipped(1.0), "altered: its SHA-256 is"),
}


def _folder_elsewhere(version: Path) -> None:
    (version / "tables").rename(version.parent / "tables")
    (version / "tables").symlink_to(version.parent / "tables")


def _file_in_a_folder(version: Path) -> None:
    (version / "new").mkdir()
    (version / "new" / "file").touch()


# What a version's folder may have besides, and what is said of it.
EXTRA: dict[str, tuple[Alter, str]] = {
    "a file": (lambda version: (version / "extra").touch(), "extra: not listed in the manifest"),
    "a hidden file": (lambda version: (version / ".hidden").touch(), ".hidden: not listed"),
    "a file in a folder": (_file_in_a_folder, "new/file: not listed"),
    "a pipe": (lambda version: os.mkfifo(version / "pipe"), "pipe: not listed"),
    "a link": (lambda version: (version / "link").symlink_to("tables"), "link: a symbolic link"),
    "a dangling link": (lambda version: (version / "link").symlink_to("no"), "link: a symbolic"),
    "a link to /etc": (lambda version: (version / "link").symlink_to("/etc"), "link: a symbolic"),
    "a linked folder": (_folder_elsewhere, "tables: a symbolic link"),
}


@pytest.mark.parametrize("what", EXTRA)
def test_what_the_manifest_does_not_list_is_refused_by_name(version_copy: Path, what: str) -> None:
    make, words = EXTRA[what]
    make(version_copy)
    refused(version_copy, f"/{words}")


def test_a_folder_without_its_manifest_is_no_version(version_copy: Path) -> None:
    (version_copy / "manifest.json").unlink()
    with pytest.raises(NotFoundError, match=f"{version_copy}: no manifest.json"):
        open_model(version_copy)


# The manifest as text.


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_a_truncated_manifest_is_refused_without_its_bytes(version_copy: Path, kept: float) -> None:
    path = version_copy / "manifest.json"
    size = int(kept * path.stat().st_size)
    os.truncate(path, size)
    words = f"{path}: the document: Invalid JSON: EOF .*: {size} bytes: damaged"
    with pytest.raises(ArtifactError, match=words) as caught:
        open_model(version_copy)
    assert "format_version" not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x05K\x01.",
        b'{"format_version": 1,}',
        b"\xff\xfe{\0}\0",
        b"[" * 1_000_000,
        b'{"format_version": NaN}',
        b"[]",
    ],
    ids=["pickle", "comma", "UTF-16", "nested lists", "NaN", "a list"],
)
def test_a_manifest_that_is_no_json_object_is_refused(version_copy: Path, content: bytes) -> None:
    (version_copy / "manifest.json").write_bytes(content)
    refused(version_copy, "/manifest.json: ")


# The manifest's fields.


PLACES: dict[str, Callable[[Document], Document]] = {
    "": lambda document: document,
    "tables.0.": lambda document: document["tables"][0],
    "tables.1.pieces.0.": lambda document: document["tables"][1]["pieces"][0],
    "tower.": lambda document: document["tower"],
    "tower.outputs.1.": lambda document: document["tower"]["outputs"][1],
    "golden.": lambda document: document["golden"],
    "files.tower.pt2.": lambda document: document["files"]["tower.pt2"],
}


@pytest.mark.parametrize("place", PLACES)
def test_an_unknown_missing_or_mistyped_field_is_refused(version_copy: Path, place: str) -> None:
    path = version_copy / "manifest.json"
    document = json.loads(path.read_text())
    # Versions of before have neither; the checksum is right again after every edit.
    optional = {"sha256"} | ({"outputs"} if place == "golden." else set())
    fields = [field for field in PLACES[place](document) if field not in optional]
    assert fields
    edits: list[tuple[Edit, str]] = [(lambda part: part.update(surprise=1), "surprise: Unexpected")]
    for field in fields:
        edits.append((lambda part, field=field: part.pop(field), f"{field}: Field required"))
        edits.append((lambda part, field=field: part.update({field: [[]]}), field))
    for edit, words in edits:
        edit_manifest(version_copy, lambda document, edit=edit: edit(PLACES[place](document)))
        refused(version_copy, f"manifest.json: {place}{words}")
        path.write_text(json.dumps(document))


def _later(document: Document) -> None:
    document.update(format_version=9, producer={"sharded-infer": "7.1"})
    del document["tables"]


def _with_pieces(*pieces: tuple[int, int]) -> Edit:
    """First rows and numbers of rows of the first table's pieces."""

    def cut(document: Document) -> None:
        (piece,) = document["tables"][0]["pieces"]
        document["tables"][0]["pieces"] = [
            piece | {"first_row": first, "rows": rows} for first, rows in pieces
        ]

    return cut


def _with_piece(**changed: object) -> Edit:
    return lambda document: document["tables"][0]["pieces"][0].update(changed)


FILE = Path(INT8).name


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        *(
            (lambda d, said=said: d.update(format_version=said), "manifest.json: format_version: ")
            for said in (0, "1", None, 1.5)
        ),
        (
            _later,
            "manifest.json: format_version: expected 1 or 2, got '9'; sharded-infer 7.1 wrote it; "
            "upgrade sharded-infer to read it",
        ),
        (lambda d: d.update(version=0), "manifest.json: version: .*greater than or equal to 1"),
        (lambda d: d.update(version=2), "manifest.json: says version 2, its folder 1"),
        (lambda d: d["tables"].reverse(), "manifest.json: .*tables are not those of the spec"),
        (lambda d: d["tables"][0].update(rows=49), "manifest.json: .*tables are not those of"),
        (lambda d: d["tables"][0].update(row_format="bf16"), "tables are not those of the spec"),
        (lambda d: d["tables"][0].update(row_format="int1"), "json: .*tables.0.row_format: "),
        (lambda d: d["tables"][0].update(pieces=[]), "json: .*tables.0.pieces: .*at least 1 item"),
        (lambda d: d.update(format_version=2), "expected 1 for 0 tables .* and no base, got 2"),
        (lambda d: d.update(model="other"), "json: .*spec does not agree with model 'other'"),
        (lambda d: d["spec"].update(name="../small"), "json: .*name: '../small' is not a name"),
        (lambda d: d["spec"].update(surprise=1), "manifest.json: .*surprise: Unexpected keyword"),
        (lambda d: d["spec"].pop("tables"), "manifest.json: .*tables: Field required"),
        (lambda d: d["spec"].pop("gate"), "json: .*spec does not agree with model 'small'"),
        (lambda d: d["tower"]["outputs"].reverse(), "json: .*outputs are not those of the spec"),
        (lambda d: d["tower"].update(outputs=[]), "manifest.json: .*tower.outputs: "),
        (lambda d: d["tower"].update(precision="int1"), "manifest.json: .*tower.precision: "),
        (lambda d: d.update(plans={}), "manifest.json: .*plans: .*at least 1 item"),
        (lambda d: d["files"]["tower.pt2"].update(bytes=-1), "json: .*files.tower.pt2.bytes: "),
        (lambda d: d["files"]["tower.pt2"].update(sha256="f" * 64 + "\n"), "tower.pt2.sha256: "),
        (lambda d: d["files"].pop("tower.pt2"), "'tower.pt2' is used but has no size and hash"),
        (lambda d: d["files"].pop("report.json"), "/report.json: not listed in the manifest"),
        (lambda d: d["plans"].update({"cpu:8": "p"}), "'p' is used but has no size and hash"),
        (_with_pieces((0, 20), (25, 25)), "table 'ads': a piece begins at row 25, expected 20"),
        (_with_pieces((0, 30), (20, 20)), "table 'ads': a piece begins at row 20, expected 30"),
        (_with_pieces((1, 49)), "table 'ads': a piece begins at row 1, expected 0"),
        (_with_pieces((0, 51)), "table 'ads': its pieces hold 51 of 50 rows"),
        (_with_pieces((0, 0), (0, 50)), "tables.0.pieces.0.rows: .*greater than or equal to 1"),
        (_with_pieces((-1, 50)), "tables.0.pieces.0.first_row: .*greater than or equal to 0"),
        # Agrees with itself, but not with the file.
        (_with_pieces((0, 25), (25, 25)), f"{FILE}: 'ads': expected 25 rows of 12 bytes"),
        *(
            (_with_piece(entry=name), f"{FILE}: '{name}': expected 50 rows of 12 bytes for table")
            for name in ("", "adz", "country", "__metadata__")
        ),
        (_with_piece(file="report.json"), "report.json: its header of .* bytes cannot be right"),
    ],
)
def test_a_contradictory_manifest_is_refused(version_copy: Path, edit: Edit, words: str) -> None:
    edit_manifest(version_copy, edit)
    refused(version_copy, words)


OUTSIDE = (
    "../secret", "tables/../../secret", "/etc/passwd", "..", ".", "", "tables//x", "./x", "tables/",
    "tables\\..\\x", "x\0y",
)  # fmt: skip


def with_path(document: Document, place: str, name: str) -> None:
    parts: dict[str, tuple[Document, str]] = {
        "tables.0.pieces.0.file": (document["tables"][0]["pieces"][0], "file"),
        "tower.file": (document["tower"], "file"),
        "golden.file": (document["golden"], "file"),
        "plans.cpu:1": (document["plans"], "cpu:1"),
    }
    if place == "files":
        document["files"][name] = document["files"]["tower.pt2"]
    else:
        part, field = parts[place]
        part[field] = name


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("tower.file", name) for name in OUTSIDE),
        ("tables.0.pieces.0.file", "../secret"),
        ("golden.file", "../secret"),
        ("plans.cpu:1", "../secret"),
        ("files", "../secret"),
    ],
)
def test_a_path_outside_is_refused_by_field(version_copy: Path, place: str, name: str) -> None:
    shutil.copy(version_copy / "tower.pt2", version_copy.parent / "secret")
    edit_manifest(version_copy, lambda document: with_path(document, place, name))
    refused(version_copy, rf"manifest.json: {place}.*leaves the version's folder")


# Files whose hash is right.


def _filled(name: str, content: bytes) -> Alter:
    def fill(version: Path) -> None:
        (version / name).write_bytes(content)
        listed_anew(version, name)

    return fill


def _with_header(edit: Edit) -> Alter:
    """Changes the JSON header of the int8 table file; the rows stay as they are."""

    def change(version: Path) -> None:
        content = (version / INT8).read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        _filled(INT8, len(text).to_bytes(8, "little") + text + content[8 + length :])(version)

    return change


def _of_ads(**changed: object) -> Alter:
    return _with_header(lambda header: header["ads"].update(changed))


def _with_plan(edit: Edit) -> Alter:
    def change(version: Path) -> None:
        document = json.loads((version / PLAN).read_text())
        edit(document)
        _filled(PLAN, json.dumps(document).encode())(version)

    return change


def test_a_header_written_anew_is_read(version_copy: Path) -> None:
    _with_header(lambda header: header.update(__metadata__={"by": "somebody"}))(version_copy)
    assert open_model(version_copy).version == 1


HEADERS: list[tuple[Alter, str]] = [
    (
        _with_header(lambda h: h["country"].update(data_offsets=[1, 50])),
        "'country' begins at 1, expected 0",
    ),
    # `country` is 49 bytes, then `ads` 600.
    (_of_ads(data_offsets=[50, 650]), "'ads' begins at 50, expected 49"),
    (_of_ads(data_offsets=[-1, 599]), "'ads': expected U8"),
    (_of_ads(data_offsets=[49, 648]), "'ads': expected U8"),
    (_of_ads(data_offsets=[49.0, 649.0]), "'ads': expected U8"),
    (_of_ads(data_offsets=[2**70, 2**70 + 600]), "'ads' begins at"),
    (_of_ads(data_offsets=None), "'ads': not a tensor's entry"),
    (_of_ads(shape=[-50, -12]), "'ads': expected U8"),
    (_of_ads(shape=[600]), "'ads': not a tensor's entry"),
    (_of_ads(shape=[True, 600]), "'ads': expected U8"),
    (_of_ads(shape=[100, 6]), "'ads': expected 50 rows of 12 bytes"),
    (_of_ads(dtype="I8"), "'ads': expected U8"),
    (_of_ads(dtype=["U8"]), "'ads': expected U8"),
    (_with_header(lambda h: h["ads"].pop("dtype")), "'ads': not a tensor's entry"),
    (_with_header(lambda h: h.update(ads=None)), "'ads': not a tensor's entry"),
    (_with_header(lambda h: h.pop("ads")), "its tensors end at byte .*, the file at"),
    (_with_header(lambda h: h.update(adz=h.pop("ads"))), "'ads': expected 50 rows of 12 bytes"),
    (
        lambda version: _filled(INT8, (version / INT8).read_bytes() + bytes(12))(version),
        "its tensors end at byte .*, the file at",
    ),
    (_filled(INT8, b""), ""),
    (_filled(INT8, b"\x02\0\0\0\0\0\0\0{"), ""),
    (_filled(INT8, b"\xff" * 8 + b"{}"), ""),
    (_filled(INT8, b"\x02\0\0\0\0\0\0\0[]"), ""),
    (_filled(INT8, b"\x02\0\0\0\0\0\0\0\xff\xff"), ""),
    (_filled(INT8, (500_000).to_bytes(8, "little") + b"[" * 500_000), ""),
]
PLANS: list[tuple[Alter, str]] = [
    (_with_plan(lambda p: p["shards"].append(p["shards"][0])), "table 'ads': its shards must"),
    (_with_plan(lambda p: p["shards"][0].update(surprise=1)), r"shards\.0\.surprise: Unexpected"),
    (_with_plan(lambda p: p["topology"].update(name="cpu:2")), "'cpu:2', expected 'cpu:1'"),
    (
        _with_plan(lambda p: p["topology"]["devices"][0].update(memory_bytes=1000)),
        "its memory is 1000",
    ),
    (_with_plan(lambda p: p.update(topology="moon")), "topology: "),
    (_filled(PLAN, b"plan"), "not a plan"),
    (_filled(PLAN, b"[" * 1_000_000), "not a plan"),
]


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        *((alter, f"{FILE}: {words}") for alter, words in HEADERS),
        *((alter, f"/{PLAN}: .*{words}") for alter, words in PLANS),
    ],
)
def test_lying_files_are_refused(version_copy: Path, alter: Alter, words: str) -> None:
    alter(version_copy)
    refused(version_copy, words)


def test_a_huge_header_is_refused_unread(version_copy: Path) -> None:
    # As long as it says, in a file without blocks: too long for the format, whatever is in it.
    path = version_copy / INT8
    path.write_bytes((2**41).to_bytes(8, "little"))
    os.truncate(path, 2**42)
    with pytest.raises(ArtifactError, match=f"{path.name}: its header of {2**41} bytes"):
        open_model(version_copy, verify=False)


class OtherHeads(nn.Module):
    def forward(self, user_age: Tensor, context: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        return {"click": embeddings + user_age, "rating": context}


class Blind(nn.Module):
    def forward(self, embeddings: Tensor) -> dict[str, Tensor]:
        return {"click": embeddings.sum(1), "rating": embeddings[:, :3]}


@pytest.mark.parametrize(
    ("tower", "dense", "words"),
    [
        (OtherHeads(), {"user_age": 1, "context": 4}, "its outputs are of widths"),
        (Blind(), {}, "expected 3 inputs .*, the program has 1"),
    ],
)
def test_a_tower_of_another_model_is_refused_by_file(
    version_copy: Path, tower: nn.Module, dense: dict[str, int], words: str
) -> None:
    width = open_artifact(version_copy).manifest.model_spec().embedding_width
    program = export_tower(
        tower,
        dense=dense,
        embedding_width=width,
        outputs=("click", "rating"),
        precision=Precision.FP32,
    )
    write_program(program, version_copy / "tower.pt2")
    listed_anew(version_copy, "tower.pt2")
    refused(version_copy, f"tower.pt2: .*{words}")


def test_a_whole_module_in_the_towers_place_is_not_unpickled(version_copy: Path) -> None:
    trace = version_copy.parent / "trace"
    for name in ("tower.pt2", "golden.safetensors", INT8, PLAN):
        torch.save({"state_dict": Bomb(trace)}, version_copy / name)
        listed_anew(version_copy, name)
    with pytest.raises(ArtifactError):
        open_model(version_copy)
    assert not trace.exists()


def test_a_golden_id_outside_its_table_is_refused_by_file(version_copy: Path) -> None:
    tensors = load_file(version_copy / GOLDEN_NAME)
    tensors["sparse.values"][0] = 2**40
    save_file(tensors, version_copy / GOLDEN_NAME)
    listed_anew(version_copy, GOLDEN_NAME)
    with pytest.raises(ArtifactError, match="golden.safetensors: .*feature 'ad_shown'"):
        check_golden(open_model(version_copy))
