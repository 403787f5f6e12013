"""The OpenAPI description: the committed file is it, and a server keeps to it."""

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks as openapi_checks

from serving.rest.openapi import openapi_document
from tests.serving.conftest import MODEL, Ranker, RunningServer, publish_ranker, running_server

# A few hundred requests in all; many more where there is time.
EXAMPLES = 200 if os.environ.get("SHARDED_INFER_SOAK") == "1" else 8
OPERATIONS = sorted(
    (method.upper(), path)
    for path, methods in openapi_document()["paths"].items()
    for method in methods
)
# Described with the code that a server answers with where it must not go on.
CHECKS = [
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("described") / "repository")


@pytest.fixture(scope="module")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("openapi") / "stderr"
    with running_server(ranker.repository, log) as running:
        yield running
    text = log.read_text()
    assert "internal error" not in text and "Traceback" not in text, text


@pytest.fixture(scope="module")
def schema(server: RunningServer) -> Any:
    return schemathesis.openapi.from_url(f"{base_url(server)}/openapi.json")


def base_url(server: RunningServer) -> str:
    parts = urlsplit(server.metrics_url)
    return f"{parts.scheme}://{parts.netloc}"


def test_the_committed_description_is_the_servers(server: RunningServer) -> None:
    committed = json.loads((Path(__file__).parents[3] / "docs" / "openapi.json").read_text())
    with urllib.request.urlopen(f"{base_url(server)}/openapi.json") as page:  # noqa: S310
        assert json.load(page) == committed
    assert committed == json.loads(json.dumps(openapi_document()))


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_an_operation_answers_as_it_is_described(schema: Any, method: str, path: str) -> None:
    operation = schema[path][method]
    # Names that exist are asked for as often as others.
    names = st.sampled_from([MODEL, "1"])

    @seed(20)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        for name in case.path_parameters or {}:
            if data.draw(st.booleans()):
                case.path_parameters[name] = data.draw(names)
        response = case.call()
        # 501, 503 and 504 are answers, where they are described; 500 is a bug.
        assert response.status_code != 500
        case.validate_response(response, checks=CHECKS)

    ask()
