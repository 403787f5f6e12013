"""Servers as users start them, plain and protected, and NVIDIA's clients for them."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.conformance.clients import Client, ConformingServer, Protection, make_client
from tests.support.servers import Ranker, RunningServer, publish_ranker, running_server
from tests.support.tls import IssuedFiles, issue_files

TOKEN = "conforming-0123456789ab"  # noqa: S105 - of these tests


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("conforming") / "repository")


@pytest.fixture(scope="session", params=["plain", "protected"])
def server(
    request: pytest.FixtureRequest, ranker: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConformingServer]:
    """The second has TLS and tokens."""
    folder = tmp_path_factory.mktemp("server")
    log = folder / "stderr"
    protection: Protection | None = None
    options: tuple[object, ...] = ()
    if request.param == "protected":
        protection, options = protected(folder)
    with running_server(ranker.repository, log, *options) as running:
        yield conforming(running, protection)
    assert "internal error" not in log.read_text(), log.read_text()


@pytest.fixture(scope="session", params=["plain", "tls"])
def running(
    request: pytest.FixtureRequest, ranker: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, IssuedFiles | None]]:
    """A server and, with TLS, its certificates."""
    folder = tmp_path_factory.mktemp("running")
    files = issue_files(folder) if request.param == "tls" else None
    options = () if files is None else files.options()
    log = folder / "log"
    with running_server(ranker.repository, log, *options) as server:
        yield server, files
    assert "internal error" not in log.read_text()


def conforming(running: RunningServer, protection: Protection | None) -> ConformingServer:
    known = {field.name: getattr(running, field.name) for field in fields(RunningServer)}
    return ConformingServer(**known, protection=protection)


def protected(folder: Path) -> tuple[Protection, tuple[object, ...]]:
    files, tokens = issue_files(folder), folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"{TOKEN} predict,admin,metrics\n")
    return Protection(files.ca, TOKEN), (*files.options(), "--tokens-file", tokens)


@pytest.fixture(params=["grpc", "aio", "http"])
def client(request: pytest.FixtureRequest, server: ConformingServer) -> Iterator[Client]:
    client = make_client(request.param, server)
    yield client
    client.close()
