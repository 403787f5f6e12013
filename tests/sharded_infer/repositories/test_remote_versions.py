import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharded_infer.errors import ArtifactError, InputError, NotFoundError, StorageError
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.storage.version_cache import VersionCache
from tests.support.publisher import Publisher
from tests.support.s3_server import BUCKET, S3Server

MIB = 2**20
LARGE = 40 * MIB


@pytest.fixture
def bucket(s3_url: str) -> Repository:
    return Repository(s3_url)


@pytest.fixture
def prefix(s3_url: str) -> str:
    return s3_url.removeprefix(f"s3://{BUCKET}/") + "/"


def hash_of(bucket: Repository, name: str, version: int = 1) -> str:
    return bucket.open("small", version).manifest.files[name].sha256


def ranges_asked(s3: S3Server, sha256: str) -> list[tuple[int, int]]:
    asked = [
        r.removeprefix("bytes=").split("-") for m, p, r in s3.requests if m == "GET" and sha256 in p
    ]
    return sorted((int(first), int(last) + 1) for first, last in asked)


def test_files_are_uploaded_once(bucket: Repository, publish_copy: Publisher, s3: S3Server) -> None:
    publish_copy(bucket)
    s3.requests.clear()
    publish_copy(bucket, {"notes.bin": b"new"})
    put = [path for method, path, _ in s3.requests if method == "PUT"]
    assert len(put) == 3 and put[0].endswith("small/highest_version")
    assert hash_of(bucket, "notes.bin", 2) in put[1] and put[2].endswith("2/manifest.json")


def test_opening_a_version_reads_neither_tables_nor_tower(
    bucket: Repository, publish_copy: Publisher, s3: S3Server
) -> None:
    publish_copy(bucket)
    s3.requests.clear()
    artifact = bucket.open("small")
    assert artifact.plan("cpu:2").topology.name == "cpu:2"
    assert json.loads(artifact.read_small("report.json"))["model"] == "small"
    for name, record in artifact.manifest.files.items():
        if name in ("tower.pt2", "golden.safetensors") or "tables/" in name:
            assert ranges_asked(s3, record.sha256) == []


def test_an_interrupted_download_goes_on_from_where_it_stopped(
    bucket: Repository, publish_copy: Publisher, s3: S3Server
) -> None:
    content = np.random.default_rng(0).bytes(LARGE)
    publish_copy(bucket, {"large.bin": content})
    sha256 = hash_of(bucket, "large.bin")
    s3.break_after = 20 * MIB
    with pytest.raises(StorageError, match=f"files/{sha256}: cannot be read"):
        bucket.fetch("small", 1)
    s3.break_after = None
    s3.requests.clear()
    told: list[tuple[str, int, int]] = []
    folder = bucket.fetch("small", 1, lambda *words: told.append(words))
    assert (folder / "large.bin").read_bytes() == content
    asked = ranges_asked(s3, sha256)
    assert asked[0][0] == 16 * MIB and asked[-1][1] == LARGE
    assert sum(last - first for first, last in asked) == LARGE - 16 * MIB
    assert told[-1][1] == told[-1][2]


def test_a_partial_file_that_was_damaged_is_read_again(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, tmp_path: Path
) -> None:
    publish_copy(bucket, {"notes.bin": b"0123456789"})
    sha256 = hash_of(bucket, "notes.bin")
    (tmp_path / "cache" / "files" / f"{sha256}.partial").write_bytes(b"0123x")
    assert (bucket.fetch("small", 1) / "notes.bin").read_bytes() == b"0123456789"
    assert ranges_asked(s3, sha256) == [(0, 10), (5, 10)]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-1], "too short: 9 bytes, the manifest says 10"),
        (lambda content: content + b"x", "too long: 11 bytes, the manifest says 10"),
        (lambda content: b"x" + content[1:], "altered: its SHA-256 is"),
        (lambda content: b"", "too short: 0 bytes"),
        (None, "missing; the manifest says 10 bytes"),
    ],
)
def test_an_object_that_was_altered_is_refused_by_name(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, prefix: str, damage: Any, words: str
) -> None:
    publish_copy(bucket, {"notes.bin": b"0123456789"})
    key = f"{prefix}small/files/{hash_of(bucket, 'notes.bin')}"
    if damage is None:
        s3.client().delete_object(Bucket=BUCKET, Key=key)
    else:
        s3.put(key, damage(s3.content(key)))
    for _ in range(2):
        with pytest.raises(ArtifactError, match=rf"\(notes.bin\): {words}"):
            bucket.fetch("small", 1)
    s3.put(key, b"0123456789")
    assert (bucket.fetch("small", 1) / "notes.bin").read_bytes() == b"0123456789"


def test_a_damaged_manifest_is_refused_by_url(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, prefix: str
) -> None:
    publish_copy(bucket)
    key = f"{prefix}small/1/manifest.json"
    content = s3.content(key)
    s3.put(key, content[:-20])
    with pytest.raises(ArtifactError, match=r"small/1/manifest.json: the document"):
        bucket.open("small")
    s3.put(key, content.replace(b'"max_score_diff":', b'"max_score_diff": ', 1))
    with pytest.raises(ArtifactError, match=r"small/1/manifest.json: altered"):
        bucket.open("small")
    s3.put(f"{prefix}small/2/manifest.json", content)
    with pytest.raises(ArtifactError, match=r"manifest.json: says version 1, its folder 2"):
        bucket.fetch("small", 2)
    s3.put(f"{prefix}other/1/manifest.json", content)
    with pytest.raises(ArtifactError, match="of model 'small', its folder of 'other'"):
        bucket.open("other", 1)


def test_a_store_that_denies_access_is_not_there_or_cannot_be_reached_is_named(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_copy(bucket)
    s3.refuse = lambda *_: True
    for ask in (bucket.models, lambda: bucket.fetch("small", 1)):
        with pytest.raises(StorageError, match=f"{bucket.location}.* cannot be .*: access denied"):
            ask()
    s3.refuse = None
    with pytest.raises(NotFoundError, match="s3://nowhere/models: no such bucket"):
        Repository("s3://nowhere/models").models()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    words = "s3://models/small/labels.json: cannot be read: Endpoint"
    with pytest.raises(StorageError, match=words):
        Repository("s3://models").labels("small")


def test_a_publisher_that_is_refused_at_the_last_step_leaves_no_version(
    bucket: Repository, publish_copy: Publisher, s3: S3Server
) -> None:
    s3.refuse = lambda method, path: method == "PUT" and path.endswith("manifest.json")
    with pytest.raises(StorageError, match=r"small/1/manifest.json: cannot be written: access"):
        publish_copy(bucket)
    assert bucket.models() == []
    s3.refuse = None
    assert publish_copy(bucket) == 2


def test_a_write_whose_answer_was_lost_is_known_to_be_done(
    bucket: Repository, publish_copy: Publisher, s3: S3Server
) -> None:
    s3.lose_answer = lambda method, path: method == "PUT" and path.endswith("manifest.json")
    assert publish_copy(bucket) == 1
    asked = [method for method, path, _ in s3.requests if path.endswith("1/manifest.json")]
    assert asked == ["PUT", "PUT", "HEAD"]
    assert bucket.versions("small") == [1]
    for version in (1, publish_copy(bucket)):
        s3.lose_answer = lambda method, path: method == "PUT" and path.endswith("labels.json")
        bucket.set_label("small", "stable", version)
        assert s3.lose_answer is None
    assert bucket.labels("small") == {"stable": 2}
    assert bucket.label_history("small").history["stable"] == (1,)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_opens_the_store_anew(bucket: Repository, publish_copy: Publisher) -> None:
    publish_copy(bucket)
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if bucket.versions("small") == [1] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_any_file_system_holds_a_repository(publish_copy: Publisher, tmp_path: Path) -> None:
    bucket = Repository(f"memory://{tmp_path.name}/models", VersionCache(tmp_path / "cache"))
    assert [publish_copy(bucket) for _ in range(2)] == [1, 2]
    bucket.set_label("small", "stable", 2)
    assert bucket.labels("small") == {"stable": 2}
    assert bucket.models() == ["small"]
    assert (bucket.fetch("small", 1) / "manifest.json").is_file()
    bucket.remove("small", 1)
    assert bucket.versions("small") == [2]


def test_files_that_no_version_names_are_left_until_no_publisher_can_want_them(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, prefix: str
) -> None:
    publish_copy(bucket)
    s3.put(f"{prefix}small/files/{'0' * 64}", b"left by a publisher")
    assert bucket.leftovers("small", safe_seconds=3600).names == ()
    left = bucket.leftovers("small", safe_seconds=-1)
    assert left.names == (f"files/{'0' * 64}",)
    assert left.bytes == len(b"left by a publisher")
    bucket.remove_leftovers("small", left)
    assert bucket.leftovers("small", safe_seconds=-1).names == ()
    bucket.fetch("small", 1)


def test_a_bucket_holds_manifests_and_files_by_their_hash(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, prefix: str
) -> None:
    publish_copy(bucket)
    hashes = {record.sha256 for record in bucket.open("small").manifest.files.values()}
    wanted = {f"small/files/{sha256}" for sha256 in hashes}
    wanted |= {"small/1/manifest.json", "small/highest_version"}
    assert {key.removeprefix(prefix) for key in s3.keys(prefix)} == wanted


def test_a_url_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"gopher://host/models: no file system is known for it"):
        Repository("gopher://host/models")


def test_what_was_fetched_is_not_fetched_again(
    bucket: Repository, publish_copy: Publisher, s3: S3Server, s3_url: str
) -> None:
    publish_copy(bucket)
    publish_copy(bucket, {"notes.bin": b"new"})
    first = bucket.fetch("small", 1)
    s3.requests.clear()
    assert Repository(s3_url).fetch("small", 1) == first
    second = bucket.fetch("small", 2)
    got = {path.rpartition("/")[2] for method, path, _ in s3.requests if "/files/" in path}
    assert got == {hash_of(bucket, "notes.bin", 2)}
    assert (first / "tower.pt2").samefile(second / "tower.pt2")
