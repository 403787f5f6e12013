"""Changes that web pages of other sites ask for through a browser on the server's machine."""

import http.client
from contextlib import closing
from itertools import product
from urllib.parse import urlsplit

import pytest

from serving.errors import PermissionDeniedError
from serving.http_api.admission import refuse_other_sites
from serving.http_api.exchange import HttpRequest
from tests.support.servers import MODEL, RunningServer

UNLOAD = f"/v2/repository/models/{MODEL}/unload"
HERE, THERE = "ipv4:127.0.0.1:50000", "ipv4:10.0.0.7:50000"
ADMITTED = {
    "curl": ({"host": "127.0.0.1:8000"}, HERE),
    "its own page": ({"host": "localhost:8000", "origin": "http://localhost:8000"}, HERE),
    "of IPv6": ({"host": "[::1]:8000", "sec-fetch-site": "same-origin"}, "ipv6:[::1]:50000"),
    "from another machine": ({"host": "ranker.example"}, THERE),
    "with a token": ({"host": "ranker.example", "authorization": "Bearer x"}, HERE),
}
REFUSED = {
    "a form of another site": ({"host": "localhost:8000", "origin": "http://evil.example"}, HERE),
    "a sandboxed page": ({"host": "localhost:8000", "origin": "null"}, HERE),
    "without an origin": ({"host": "localhost:8000", "sec-fetch-site": "cross-site"}, HERE),
    "another port": ({"host": "localhost:8000", "origin": "http://localhost:3000"}, HERE),
    "a name made to mean this machine": (
        {"host": "evil.example", "origin": "http://evil.example"},
        HERE,
    ),
    "no host": ({}, HERE),
    "a host that is none": ({"host": "["}, HERE),
    "from another machine": ({"host": "r.example", "origin": "http://evil.example"}, THERE),
}


@pytest.mark.parametrize("case", ADMITTED)
def test_changes_are_admitted_from_clients_and_own_pages(case: str) -> None:
    headers, peer = ADMITTED[case]
    refuse_other_sites(HttpRequest("POST", UNLOAD, "", headers, b"", peer))


@pytest.mark.parametrize("case", REFUSED)
def test_changes_are_refused_from_other_sites(case: str) -> None:
    headers, peer = REFUSED[case]
    with pytest.raises(PermissionDeniedError, match="may not change this server|Host: expected"):
        refuse_other_sites(HttpRequest("POST", UNLOAD, "", headers, b"", peer))


def test_a_server_stays_as_it_is_when_another_sites_page_posts_to_it(server: RunningServer) -> None:
    address = urlsplit(server.metrics_url).netloc
    changes = (UNLOAD, "/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/unregister")
    headers = {"Origin": "http://evil.example"}, {"Host": "evil.example"}
    asked = [*product(changes, headers, (403,)), *product(("/v2/models/x/infer",), headers, (404,))]
    for path, sent, status in asked:
        with closing(http.client.HTTPConnection(address, timeout=20.0)) as connection:
            body = b'{"inputs": []}' if path.endswith("infer") else b"{}"
            connection.request("POST", path, body, sent)
            assert connection.getresponse().status == status, path
    with closing(http.client.HTTPConnection(address, timeout=20.0)) as connection:
        connection.request("GET", f"/v2/models/{MODEL}/ready")
        assert connection.getresponse().status == 200
