import asyncio

from serving.http_api.exchange import HttpAnswer, HttpRequest
from serving.http_api.shared_pages import SharedPages


class Pages:
    def __init__(self) -> None:
        self.made = 0
        self.running = 0
        self.go_on = asyncio.Event()

    async def make(self, request: HttpRequest) -> HttpAnswer:
        self.running += 1
        assert self.running == 1, "pages are made one after another"
        await self.go_on.wait()
        self.running -= 1
        if request.path == "/broken":
            raise ValueError("broken")
        self.made += 1
        return HttpAnswer(200, f"{request.path} {self.made}".encode())


def get(path: str, **headers: str) -> HttpRequest:
    return HttpRequest("GET", path, "", headers, b"")


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_requests_share_a_page_that_is_not_begun_and_get_none_that_is() -> None:
    async def ask() -> list[bytes]:
        pages = Pages()
        shared = SharedPages(pages.make)
        first = asyncio.create_task(shared.answer(get("/metrics")))
        await turns()
        # The first page has begun: what it says may be from before these requests.
        later = [asyncio.create_task(shared.answer(get("/metrics"))) for _ in range(100)]
        other = asyncio.create_task(shared.answer(get("/metrics", accept="text/plain")))
        await turns()
        later[0].cancel()
        pages.go_on.set()
        answers = await asyncio.gather(first, *later[1:], other)
        assert pages.made == 3
        return [answer.body for answer in answers]

    bodies = asyncio.run(ask())
    assert bodies == [b"/metrics 1", *[b"/metrics 2"] * 99, b"/metrics 3"]


def test_a_page_that_fails_does_so_for_its_requests_alone() -> None:
    async def ask() -> list[object]:
        pages = Pages()
        pages.go_on.set()
        shared = SharedPages(pages.make)
        paths = ["/broken"] * 5 + ["/"] * 5
        asked = (shared.answer(get(path)) for path in paths)
        return list(await asyncio.gather(*asked, return_exceptions=True))

    answers = asyncio.run(ask())
    assert [type(answer) for answer in answers] == [ValueError] * 5 + [HttpAnswer] * 5
