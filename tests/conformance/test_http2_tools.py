"""h2load and curl, which do not know gRPC."""

import re
import shutil
import subprocess
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.http2_peer import INFER, framed
from tests.support.servers import RunningServer, good_inputs, infer_request
from tests.support.tls import IssuedFiles

TIMED_OUT = 28  # curl's exit code
Running = tuple[RunningServer, IssuedFiles | None]


def run(program: str, *words: object) -> "subprocess.CompletedProcess[str]":
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt install nghttp2-client curl")
    command = [program, *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )


def url_of(running: Running) -> str:
    scheme = "http" if running[1] is None else "https"
    return f"{scheme}://{running[0].grpc_url}{INFER}"


def answered(running: Running) -> float:
    """Predict calls that were answered with OK."""
    context = None if running[1] is None else running[1].context()
    with urlopen(running[0].metrics_url, timeout=30, context=context) as page:  # noqa: S310
        lines = page.read().decode().splitlines()
    found = [line for line in lines if line.startswith("sharded_infer_requests_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if 'code="OK"' in line)


@pytest.mark.parametrize(("clients", "streams", "calls"), [(1, 2000, 6000), (16, 16, 4000)])
def test_h2load_has_all_answers(
    running: Running, clients: int, streams: int, calls: int, tmp_path: Path
) -> None:
    body = tmp_path / "body"
    body.write_bytes(framed(infer_request(good_inputs(2)).SerializeToString()))
    before = answered(running)
    headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    words = ("-n", calls, "-c", clients, "-m", streams, "-d", body, *headers)
    done = run("h2load", *words, url_of(running))
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(
        r"(\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout
    )
    assert told is not None, done.stdout
    assert [int(count) for count in told.groups()] == [calls, calls, 0, 0, 0], done.stdout
    # h2load does not look at grpc-status.
    assert answered(running) - before == calls


def test_http_1_is_cut_off_and_not_left_waiting(running: Running) -> None:
    trust = () if running[1] is None else ("--cacert", running[1].ca)
    for form in ("--http1.1", "--http1.0"):
        done = run("curl", "--silent", "--max-time", 60, *trust, form, url_of(running))
        assert done.returncode not in {0, TIMED_OUT}, done
