"""Servers that are attacked."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.attacks.attacker import Served, Target, call, grpc_channel
from tests.support.servers import (
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    running_server,
    scores_of,
)

INFER = b"/inference.GRPCInferenceService/ModelInfer"
PREDICT_TOKEN, ADMIN_TOKEN = "0123456789abcdef-predict", "0123456789abcdef-admin"
# As many as a shell allows that nobody has asked for more.
FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
import serving.cli
serving.cli.main()
"""
MOST_LOG_BYTES = 100_000
# The model beside the ranker.
OTHER = "small"


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("attacked") / "repository")


@pytest.fixture
def repository(ranker: Ranker, published_version: Path, tmp_path: Path) -> Path:
    """Two models, to be damaged."""
    home = tmp_path / "repository"
    shutil.copytree(ranker.repository, home)
    shutil.copytree(published_version.parent, home / OTHER)
    return home


@contextmanager
def attacked_server(
    repository: Path, log: Path, *options: object, program: str | None = None
) -> Iterator[RunningServer]:
    """A server that meets no error of its own."""
    with running_server(repository, log, *options, program=program) as server:
        yield server
    text = log.read_text()
    assert "internal error" not in text and "Traceback" not in text, text[:5000]


@pytest.fixture(scope="session")
def served(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A default server of few descriptors."""
    log = tmp_path_factory.mktemp("served") / "stderr"
    with attacked_server(ranker.repository, log, program=FEW_DESCRIPTORS) as server:
        inputs = good_inputs(3)
        target = Target(server.grpc_url, INFER, infer_request(inputs).SerializeToString())
        with grpc_channel(target) as channel:
            answer = call(channel, target)
        response = service_pb2.ModelInferResponse.FromString(answer)
        assert np.array_equal(scores_of(response)["score"], ranker.predict(inputs)["score"])
        http_address = urlsplit(server.metrics_url).netloc
        yield Served(target, answer, server.process.pid, http_address)
    # A busy machine has slow requests, of which there are some lines a second.
    others = [line for line in log.read_text().splitlines() if 'event="slow_request"' not in line]
    assert sum(map(len, others)) < MOST_LOG_BYTES, others[:20]


@pytest.fixture(scope="session")
def guarded(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that asks for tokens."""
    folder = tmp_path_factory.mktemp("guarded")
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"{PREDICT_TOKEN} predict # ranking\n{ADMIN_TOKEN} admin # operators\n")
    with attacked_server(ranker.repository, folder / "log", "--tokens-file", tokens) as running:
        yield running
