import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from serving.http_api.exchange import HttpAnswer, HttpCall, HttpRequest
from serving.http_api.shared_pages import SharedPages

SECONDS = 30.0


class Pages:
    def __init__(self) -> None:
        self.made = 0
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.shared = SharedPages(self.make)

    def make(self, request: HttpRequest) -> HttpAnswer:
        self.begun.set()
        assert self.go_on.wait(SECONDS)
        if request.path == "/broken":
            raise ValueError("broken")
        self.made += 1
        return HttpAnswer(200, f"{request.path} {self.made}".encode())

    def ask(self, path: str, **headers: str) -> "SimpleQueue[HttpAnswer]":
        answers: SimpleQueue[HttpAnswer] = SimpleQueue()
        self.shared.take(HttpCall(1, HttpRequest("GET", path, "", headers), answers.put))
        return answers


@pytest.fixture
def pages() -> Iterator[Pages]:
    pages = Pages()
    yield pages
    pages.shared.close()


def test_requests_share_a_page_that_is_not_begun_and_get_none_that_is(pages: Pages) -> None:
    first = pages.ask("/metrics")
    assert pages.begun.wait(SECONDS)
    # The first page has begun: what it says may be from before these requests.
    later = [pages.ask("/metrics") for _ in range(20)]
    other = pages.ask("/metrics", accept="text/plain")
    pages.go_on.set()
    bodies = [asked.get(timeout=SECONDS).body for asked in (first, *later, other)]
    assert bodies == [b"/metrics 1", *[b"/metrics 2"] * 20, b"/metrics 3"]


def test_a_page_that_fails_does_so_for_its_requests_alone(pages: Pages) -> None:
    asked = [pages.ask(path) for path in ["/broken"] * 5 + ["/"] * 5]
    pages.go_on.set()
    statuses = [answers.get(timeout=SECONDS).status for answers in asked]
    assert statuses == [500] * 5 + [200] * 5


def test_of_too_many_requests_some_are_refused_at_once(pages: Pages) -> None:
    asked = [pages.ask(f"/{number}") for number in range(65)]
    refused = asked[-1].get(timeout=SECONDS)
    assert refused.status == 503 and refused.headers == (("Retry-After", "1"),)
    pages.go_on.set()
    assert asked[0].get(timeout=SECONDS).status == 200
