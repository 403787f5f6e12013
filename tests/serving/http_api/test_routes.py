import http.client
from collections.abc import Iterator
from contextlib import closing

import pytest

from serving.abi.transport import AccessBit
from serving.http_api.exchange import HttpCall, json_answer
from serving.http_api.routes import PROBES, ROUTES, Route, transport_routes, unknown_path
from serving.security.access import Access
from sharded_infer.errors import RequestError
from tests.serving.http_api.http_servers import Answering, serving_http


def test_a_path_has_its_names() -> None:
    (route,) = (route for route in ROUTES if route.operation == "ModelConfigVersion")
    names = route.names("/v2/models/a%2Fb/versions/%C3%A9/config")
    assert names == {"model": "a/b", "version": "é"}
    with pytest.raises(RequestError, match="UTF-8"):
        route.names("/v2/models/%ff/versions/1/config")


def test_operations_have_names_of_their_own() -> None:
    assert len({route.operation for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("path", ["/v2/", "/v2/models", "/v2/models/a/b/c/d"])
def test_another_path_is_404(path: str) -> None:
    assert unknown_path("GET", path).status == 404


def test_another_method_is_405_and_says_which_are_allowed() -> None:
    refused = unknown_path("DELETE", "/v2/logging")
    assert refused.status == 405
    assert refused.headers == (("Allow", "GET, POST, HEAD"),)


def test_a_path_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        unknown_path("GET", "/v2/models/%ff/x")


def test_the_admin_address_alone_answers_what_changes_the_server() -> None:
    routes = transport_routes(has_protocol=True, admin_elsewhere=True, max_body_bytes=2**20)
    elsewhere = {
        known.operation
        for known, route in zip(ROUTES, routes, strict=False)
        if route.access is AccessBit.ELSEWHERE
    }
    assert elsewhere == {known.operation for known in ROUTES if known.access is Access.ADMIN}
    assert "RepositoryModelLoad" in elsewhere and "ModelInfer" not in elsewhere


def test_a_process_without_models_reads_no_body() -> None:
    routes = transport_routes(has_protocol=True, admin_elsewhere=False, max_body_bytes=0)
    assert not any(route.max_body for route in routes)
    assert [route.is_probe for route in routes].count(True) == len(PROBES) + 2


class Naming(Answering):
    def take(self, call: HttpCall, route: Route) -> None:
        call.reply(json_answer([route.operation, dict(route.names(call.request.path))]))


@pytest.fixture(scope="module")
def connection() -> Iterator[http.client.HTTPConnection]:
    with (
        serving_http(api=Naming()) as pages,
        closing(http.client.HTTPConnection("127.0.0.1", pages.server_port, timeout=20)) as kept,
    ):
        yield kept


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
@pytest.mark.parametrize("name", ["a", "a%2fb", "%c3%a9", "..", "", "stats"])
def test_the_transport_finds_the_route_of_a_path(
    connection: http.client.HTTPConnection, route: Route, name: str
) -> None:
    path = route.path
    for placeholder in ("{model}", "{version}", "{region}"):
        path = path.replace(placeholder, name)
    expected = route.operation
    if path == "/v2/models/stats":
        # Of all models, not of one that is called so.
        expected = "AllStatistics"
    for asked in (path, f"{path}?a=/b", path.replace("/v2", "/%762").replace("models", "mod%65ls")):
        connection.request(route.method, asked)
        answer = connection.getresponse().read().decode()
        assert answer.startswith(f'["{expected}"'), (asked, answer)
