"""Servers as users start them, on both transports, and NVIDIA's clients for them."""

from collections.abc import Iterator

import pytest

from tests.conformance.clients import Client, make_client
from tests.serving.conftest import (
    TRANSPORTS,
    Ranker,
    RunningServer,
    publish_ranker,
    running_server,
)


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("conforming") / "repository")


@pytest.fixture(scope="session", params=TRANSPORTS)
def server(
    request: pytest.FixtureRequest, ranker: Ranker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "stderr"
    with running_server(ranker.repository, log, "--transport", request.param) as running:
        yield running
    assert "internal error" not in log.read_text(), log.read_text()


@pytest.fixture(params=["grpc", "aio", "http"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Client]:
    client = make_client(request.param, server)
    yield client
    client.close()
