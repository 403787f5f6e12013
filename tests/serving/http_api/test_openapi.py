import json
import os
import re
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

import serving.http_api
from serving.http_api.routes import ROUTES, Route
from tests.support.servers import MODEL, Ranker, RunningServer, running_server

# A few hundred requests in all; many more where there is time.
EXAMPLES = 200 if os.environ.get("SHARDED_INFER_SOAK") == "1" else 8
FILE = Path(serving.http_api.__file__).parent / "openapi.json"
DESCRIPTION = json.loads(FILE.read_text())
OPERATIONS = sorted(
    (method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods
)
# Answered beside the protocol's routes.
PAGES = {("GET", "/live"), ("GET", "/ready"), ("GET", "/metrics")}
# Described with the code that a server answers with where it must not go on.
CHECKS = [
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.unsupported_method,
]


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


def test_the_servers_routes_and_pages_are_described_and_nothing_else() -> None:
    assert set(OPERATIONS) == {(route.method, route.path) for route in ROUTES} | PAGES


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_a_route_is_described_by_its_operation_its_names_and_whether_it_has_a_body(
    route: Route,
) -> None:
    described = DESCRIPTION["paths"][route.path][route.method.lower()]
    assert described["operationId"] == route.operation
    assert ("requestBody" in described) is route.has_body
    references = [one["$ref"].rpartition("/")[2] for one in described.get("parameters", [])]
    parameters = [DESCRIPTION["components"]["parameters"][name] for name in references]
    names = [one["name"] for one in parameters if one["in"] == "path"]
    assert names == re.findall(r"\{(\w+)\}", route.path)


def test_every_component_is_referred_to_and_every_reference_has_one() -> None:
    referred = set(re.findall(r'"#/components/([^"]+)"', FILE.read_text()))
    components = DESCRIPTION["components"].items()
    assert referred == {f"{kind}/{name}" for kind, named in components for name in named}


def test_a_server_shows_its_description(server: RunningServer, schema: Any) -> None:
    with urllib.request.urlopen(f"{base_url(server)}/openapi.json") as page:  # noqa: S310
        assert page.headers["content-type"] == "application/json"
        assert page.read() == FILE.read_bytes()
    schema.validate()


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
