"""h2load, nghttp and curl, which know HTTP/2 and not gRPC."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.http2_peer import INFER, framed
from tests.support.servers import RunningServer, good_inputs, infer_request
from tests.support.tls import IssuedFiles

_SECONDS = 120
_TIMED_OUT = 28  # curl's exit code
HEADERS = ("content-type: application/grpc", "te: trailers")


@dataclass(frozen=True, slots=True)
class ToolServer:
    """A server as a URL, and a call's body in a file."""

    running: RunningServer
    files: IssuedFiles | None
    body: Path

    @property
    def url(self) -> str:
        scheme = "http" if self.files is None else "https"
        return f"{scheme}://{self.running.grpc_url}{INFER}"

    def answered(self) -> float:
        """Predict calls that were answered with OK."""
        context = None if self.files is None else self.files.context()
        with urlopen(self.running.metrics_url, timeout=30, context=context) as page:  # noqa: S310
            lines = page.read().decode().splitlines()
        found = [line for line in lines if line.startswith("sharded_infer_requests_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if 'code="OK"' in line)

    def curl(self, *words: object) -> "subprocess.CompletedProcess[str]":
        trust = () if self.files is None else ("--cacert", self.files.ca)
        return run("curl", "--silent", "--show-error", "--max-time", 60, *trust, *words, self.url)


def run(program: str, *words: object) -> "subprocess.CompletedProcess[str]":
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt install nghttp2-client curl")
    return subprocess.run(
        [program, *map(str, words)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def server(
    running: tuple[RunningServer, IssuedFiles | None], tmp_path_factory: pytest.TempPathFactory
) -> ToolServer:
    body = tmp_path_factory.mktemp("tools") / "body"
    body.write_bytes(framed(infer_request(good_inputs(2)).SerializeToString()))
    return ToolServer(*running, body)


@pytest.mark.parametrize(("clients", "streams", "calls"), [(1, 2000, 6000), (16, 16, 4000)])
def test_h2load_has_every_call_answered(
    server: ToolServer, clients: int, streams: int, calls: int
) -> None:
    before = server.answered()
    headers = [word for header in HEADERS for word in ("-H", header)]
    done = run(
        "h2load", "-n", calls, "-c", clients, "-m", streams, "-d", server.body, *headers, server.url
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(
        r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout
    )
    assert told is not None, done.stdout
    assert [int(count) for count in told.groups()] == [calls, calls, 0, 0, 0], done.stdout
    # h2load does not look at grpc-status.
    assert server.answered() - before == calls


def test_curl_makes_a_call(server: ToolServer, tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    headers = [word for header in HEADERS for word in ("--header", header)]
    done = server.curl(
        "--http2-prior-knowledge", *headers, "--data-binary", f"@{server.body}", "--include",
        "--output", answer,
    )  # fmt: skip
    assert done.returncode == 0, done
    data = answer.read_bytes()
    assert data.startswith(b"HTTP/2 200") and b"grpc-status: 0" in data


def test_http_1_is_cut_off_and_not_left_waiting(server: ToolServer) -> None:
    for form in (("--http1.1",), ("--http1.0",)):
        done = server.curl(*form)
        assert done.returncode not in {0, _TIMED_OUT}, done
