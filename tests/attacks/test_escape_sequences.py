"""Control characters and markup in what others wrote: shown, and never obeyed by a terminal."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.observability.log_lines import LogFormat, LogLines
from sharded_infer.reports.html.text import visible
from sharded_infer.repositories.repository import Repository
from tests.support.manifest_file import edit_manifest
from tests.support.publisher import Publisher
from tests.support.servers import Command, Done

# A title, a cleared screen by ESC and by C1, a bell, a changed direction; then rich's own markup.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\b\r\u202e[/red][bold]:smile:"
WRITTEN = {"\n"}


def assert_harmless(done: Done, *, whole: bool = True) -> None:
    """Nothing of it reaches a terminal, or is taken for markup or a picture if all is shown."""
    said = done.out + done.err
    assert [c for c in said if not c.isprintable() and c not in WRITTEN] == []
    shown = said.replace("\n", "")
    assert "Traceback" not in said and "owned" in shown
    assert not whole or "[/red][bold]:smile:" in shown


@pytest.fixture
def repository(tmp_path: Path, publish_copy: Publisher) -> Repository:
    """A version whose manifest has them wherever it may have any text, with a checksum."""
    repository = Repository(tmp_path / "models")
    for _ in range(2):
        publish_copy(repository)
    said = {"created_at": HOSTILE, "producer": {HOSTILE: HOSTILE}}
    for version in ("1", "2"):
        edit_manifest(repository.path / "small" / version, lambda document: document.update(said))
    return repository


@pytest.mark.parametrize("words", ["inspect -r", "repo show"])
def test_manifests_are_harmless(repository: Repository, sharded_infer: Command, words: str) -> None:
    more = ("small", "1") if words == "repo show" else ()
    done = sharded_infer(*words.split(), repository.path, *more)
    assert done.code == 0, done
    assert_harmless(done)


@pytest.mark.parametrize("words", ["repo list", "repo verify", "repo show", "repo diff", "verify"])
def test_errors_are_printed_harmless(
    repository: Repository, sharded_infer: Command, words: str
) -> None:
    for version in ("1", "2"):
        folder = repository.path / "small" / version
        if "verify" in words:
            (folder / HOSTILE.replace("/", "|")).touch()
        else:
            edit_manifest(folder, lambda manifest: manifest.update({HOSTILE: 1}))
    more = {"repo show": ("small",), "repo diff": ("small", "1", "2")}.get(words, ())
    place = ("-r", repository.path) if words == "verify" else (repository.path,)
    assert_harmless(sharded_infer(*words.split(), *place, *more), whole=False)


def test_a_model_name_is_shown_without_them(repository: Repository, sharded_infer: Command) -> None:
    version = repository.path / HOSTILE.replace("/", "|") / "1"
    version.mkdir(parents=True)
    (version / "manifest.json").write_text("{}")
    for words in ("list", "verify"):
        assert_harmless(sharded_infer("repo", words, repository.path), whole=False)


class _HostileServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        entry = service_pb2.RepositoryIndexResponse.ModelIndex
        said = entry(name=HOSTILE, version="1", state=HOSTILE, reason=HOSTILE)
        return service_pb2.RepositoryIndexResponse(models=[said])

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, HOSTILE)

    ModelConfig = ModelInfer


def test_what_a_server_says_is_printed_without_them(sharded_infer: Command, tmp_path: Path) -> None:
    samples = tmp_path / "samples.json"
    samples.write_text('[{"x": [0.5]}]')
    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_HostileServer(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        assert_harmless(sharded_infer("repo", "watch", address, "--timeout", 0))
        assert_harmless(sharded_infer("predict", samples, "--address", address, "-m", "small"))
    finally:
        server.stop(None).wait()


def test_a_log_line_has_none(caplog: pytest.LogCaptureFixture) -> None:
    record = logging.LogRecord("x", logging.WARNING, "", 0, "model %s", (HOSTILE,), None)
    record.model = HOSTILE
    line = LogLines(LogFormat.TEXT).format(record)
    assert all(c.isprintable() for c in line) and "owned" in line
    assert visible(line) == line
