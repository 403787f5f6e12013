"""The demo: clicks in, a served model and its figures out, in processes as users start them."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.grpc import InferInput

from serving.commands.demo import opens_page
from tests.support.servers import command, environment
from tests.support.waiting import until

DATA = Path(os.environ.get("SHARDED_INFER_DATA", Path(__file__).parents[2].parent / "shared/data"))
SAMPLE = DATA / "criteo_sample.tsv"


@dataclass(frozen=True, slots=True)
class DemoRun:
    """A finished demo: its exit code, figures, outputs, and where it published."""

    code: int
    fields: dict[str, Any]
    out: str
    err: str
    repository: Path


# Takes what it is asked to open, and is closed by the test alone.
BROWSER = """#!{python}
import os, re, sys, time
from pathlib import Path
from urllib.request import Request, urlopen
body = urlopen(Request(sys.argv[1], headers={{"Accept": "text/html"}}), timeout=60).read().decode()
[title] = re.findall("<title>(.*)</title>", body)
part = Path({part!r})
part.write_text(f"{{os.getpid()}} {{sys.argv[1]}} {{title}}")
part.rename(part.with_suffix(""))
time.sleep(600)
"""


def run_demo(folder: Path, *options: object, browser: Path | None = None) -> DemoRun:
    figures, repository = folder / "figures.json", folder / "repository"
    words = command("demo", "-r", repository, "--json", figures, *options)
    variables = environment() if browser is None else {**environment(), "BROWSER": str(browser)}
    # Files, not pipes: a server that is kept would hold a pipe open.
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        code = subprocess.call(words, stdout=out, stderr=err, env=variables, timeout=240)
    printed, logged = (folder / "out").read_text(), (folder / "err").read_text()
    assert figures.exists(), logged
    return DemoRun(code, json.loads(figures.read_text()), printed, logged, repository)


def processes_of(path: Path, word: str = "") -> list[int]:
    """Processes whose command line names the file or folder, and a word if one is given."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(path).encode() in words and (not word or word.encode() in words):
            found.append(int(file.parent.name))
    return found


def kill_all(*paths: Path) -> None:
    for process in (process for path in paths for process in processes_of(path)):
        os.kill(process, signal.SIGKILL)


def is_listening(url: str) -> bool:
    host, port = url.removeprefix("http://").removesuffix("/metrics").rsplit(":", 1)
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def check_figures(done: DemoRun) -> None:
    fields = done.fields
    assert done.code == 0, done.err
    assert set(fields["latency_ms"]) == {"p50", "p95", "p99"}
    assert 0.5 < fields["auc_fp32"] < 1 and 0.5 < fields["auc_served"] < 1
    assert abs(fields["auc_served"] - fields["auc_fp32"]) <= 0.001
    assert 0 < fields["max_abs_score_diff"] < 0.02
    # A row of dim 64 is 256 bytes in fp32, and 64 and its scale and bias in int8.
    assert 0.25 < fields["artifact_table_bytes"] / fields["fp32_bytes"] <= 0.32
    assert fields["requests"] > 1 and fields["pairs_per_second"] > 0
    latency = fields["latency_ms"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
    for figure in (f"{fields['auc_fp32']:.4f}", fields["grpc_url"], fields["metrics_url"]):
        assert figure in done.out


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoRun]:
    """A demo that left its server and a browser running; on real clicks if they are at hand."""
    folder = tmp_path_factory.mktemp("kept")
    browser = folder / "browser"
    browser.write_text(BROWSER.format(python=sys.executable, part=str(folder / "opened.part")))
    browser.chmod(0o755)
    data = ("--data", SAMPLE) if SAMPLE.is_file() else ("--rows", 500)
    try:
        yield run_demo(folder, "--keep", "--browser", *data, browser=browser)
    finally:
        kill_all(folder / "repository", browser)


def test_generated_clicks_are_trained_published_served_and_scored(tmp_path: Path) -> None:
    done = run_demo(tmp_path, "--rows", 2000)
    check_figures(done)
    assert done.fields["training_rows"] + done.fields["scored_rows"] == 2000
    assert done.fields["server_pid"] is None
    assert processes_of(done.repository) == []
    assert not is_listening(done.fields["grpc_url"])
    assert not is_listening(done.fields["metrics_url"])
    manifest = json.loads((done.repository / "criteo_dlrm" / "1" / "manifest.json").read_text())
    assert len(manifest["tables"]) == 26 and {t["dim"] for t in manifest["tables"]} == {64}
    stored = sum(
        entry["bytes"]
        for file, entry in manifest["files"].items()
        if file.startswith("tables/") and not file.endswith(".blocks")
    )
    assert done.fields["artifact_table_bytes"] == stored


@pytest.mark.skipif(not SAMPLE.is_file(), reason=f"the sample of real clicks is not at {SAMPLE}")
def test_real_clicks_are_trained_published_served_and_scored(kept: DemoRun) -> None:
    check_figures(kept)
    lines = SAMPLE.read_bytes().count(b"\n")
    assert kept.fields["training_rows"] + kept.fields["scored_rows"] == lines


def test_the_live_page_opens_in_a_browser_that_nobody_waits_for(kept: DemoRun) -> None:
    opened = kept.repository.parent / "opened"
    until(opened.exists, "the browser has what it was to open", 60)
    process, page, title = opened.read_text().split(maxsplit=2)
    # Raises if it has ended.
    os.kill(int(process), 0)
    assert page == kept.fields["metrics_url"].removesuffix("metrics")
    assert f"live page: {page}" in kept.out
    assert title == "sharded-infer: live"


def test_a_server_that_is_kept_answers_until_it_is_killed(kept: DemoRun) -> None:
    pid = kept.fields["server_pid"]
    assert kept.code == 0 and processes_of(kept.repository) == [pid]
    assert f"kill {pid}" in kept.out
    with tritonclient.grpc.InferenceServerClient(kept.fields["grpc_url"]) as client:
        assert client.is_model_ready("criteo_dlrm")
        tensor = InferInput("dense", [2, 13], "FP32")
        tensor.set_data_from_numpy(np.zeros((2, 13), np.float32))
        scores = client.infer("criteo_dlrm", [tensor]).as_numpy("score")
        assert scores.shape == (2,) and ((scores > 0) & (scores < 1)).all()
    assert is_listening(kept.fields["metrics_url"])
    os.kill(pid, signal.SIGTERM)
    until(lambda: processes_of(kept.repository) == [], "it has drained")
    assert not is_listening(kept.fields["grpc_url"])


def test_shard_hosts_score_as_one_process_and_requests_go_on_without_a_replica(
    tmp_path: Path,
) -> None:
    try:
        done = run_demo(tmp_path, "--rows", 1000, "--raw-ids", "--hosts", 2, "--keep")
        check_figures(done)
        hosts = done.fields["hosts"]
        assert hosts["bits_equal"] and len(hosts["table_bytes"]) == 2
        assert min(hosts["table_bytes"]) > 0
        assert 0 < done.fields["raw_ids"]["unknown"] < done.fields["raw_ids"]["ids"]
        assert hosts["requests_after_loss"] == done.fields["requests"]
        # Two replicas less one, and the other host.
        assert len(hosts["process_ids"]) == 2
        pids = [done.fields["server_pid"], *hosts["process_ids"]]
        assert sorted(processes_of(done.repository)) == sorted(pids)
        assert f"kill {' '.join(map(str, pids))}" in done.out
        with tritonclient.grpc.InferenceServerClient(done.fields["grpc_url"]) as client:
            assert client.is_model_ready("criteo_dlrm")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        until(lambda: processes_of(done.repository) == [], "they have drained")
    finally:
        kill_all(tmp_path / "repository")


def test_an_interrupt_ends_shard_hosts_too(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    words = command("demo", "-r", repository, "--rows", 500, "--hosts", 2)
    with (tmp_path / "err").open("w") as err:
        demo = subprocess.Popen(words, stdout=err, stderr=err, env=environment())
    try:
        until(lambda: len(processes_of(repository, "serve-shards")) == 3, "they have started", 240)
        demo.send_signal(signal.SIGINT)
        assert demo.wait(240) != 0
        # One that was being started learns of it by the end of its parent.
        until(lambda: not processes_of(repository), "all have ended", 60)
    finally:
        demo.kill()
        kill_all(repository)


@pytest.mark.parametrize(
    ("wanted", "variables", "is_terminal", "opens"),
    [
        (None, {"DISPLAY": ":0"}, True, True),
        (None, {"WAYLAND_DISPLAY": "wayland-0"}, True, True),
        (None, {"BROWSER": "firefox"}, True, True),
        (None, {"DISPLAY": ""}, True, False),
        (None, {}, True, False),
        (None, {"DISPLAY": ":0"}, False, False),
        (True, {}, False, True),
        (False, {"DISPLAY": ":0"}, True, False),
    ],
)
def test_the_page_opens_where_somebody_sees_it_or_wants_it(
    wanted: bool | None, variables: dict[str, str], is_terminal: bool, opens: bool
) -> None:
    assert opens_page(wanted, variables, is_terminal=is_terminal) is opens
