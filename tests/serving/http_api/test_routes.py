import pytest

from serving.http_api.exchange import HttpError
from serving.http_api.routes import ROUTES, find_route
from sharded_infer.errors import RequestError


def test_a_path_names_its_operation_and_its_names() -> None:
    route, names = find_route("GET", "/v2/models/a%2Fb/versions/%C3%A9/config")
    assert route.operation == "ModelConfigVersion"
    assert names == {"model": "a/b", "version": "é"}
    assert find_route("HEAD", "/v2")[0].operation == "ServerMetadata"
    # Of all models, not of one that is called so.
    assert find_route("GET", "/v2/models/stats")[0].operation == "AllStatistics"


def test_operations_have_names_of_their_own() -> None:
    assert len({route.operation for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize("path", ["/v2/", "/v2/models", "/v3", "/v2/models/a/b/c/d", "//v2"])
def test_another_path_is_404(path: str) -> None:
    with pytest.raises(HttpError) as refused:
        find_route("GET", path)
    assert refused.value.status == 404


def test_another_method_is_405_and_says_which_are_allowed() -> None:
    with pytest.raises(HttpError) as refused:
        find_route("DELETE", "/v2/logging")
    assert refused.value.status == 405
    assert refused.value.headers == (("Allow", "GET, POST, HEAD"),)


def test_a_name_that_is_no_utf_8_is_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8"):
        find_route("GET", "/v2/models/%ff")
