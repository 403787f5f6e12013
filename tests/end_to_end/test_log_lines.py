"""The lines of a server from start to end: one form, of a length that people read, no Python."""

import json
import re
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.servers import MODEL, publish_ranker, running_server
from tests.support.traffic import flip_bit
from tests.support.waiting import until

LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (INFO|WARNING|ERROR) "
    r"(?P<message>[^{}\[\]]+?)(?P<fields> \([a-z_.0-9]+=.*\))?"
)
# Of a line, without the paths of this test.
MOST_CHARACTERS = 260
POLL = ("--poll-seconds", 0.05)


def life_of_a_server(home: Path, log: Path, *options: object) -> str:
    """The log of a start beside a broken model, a load, a refusal, a hang-up, and the end."""
    publish_ranker(home)
    broken = home / "broken"
    shutil.copytree(home / MODEL, broken)
    with running_server(home, log, *POLL, *options) as server:
        publish_ranker(home, seed=2)
        until(lambda: log.read_text().count("default is version 2") > 0, "version 2")
        aside = home.with_name("aside")
        third = publish_ranker(aside, seed=3).model.artifact.path
        flip_bit(next(third.glob("tables/*.safetensors")))
        publish_ranker(aside, seed=4)
        # As number 3 it is broken by its number, too.
        third.rename(home / MODEL / "3")
        until(lambda: "version 3 is not served" in log.read_text(), "version 3 is refused")
        (home / MODEL / "labels.json").mkdir()
        until(lambda: "cannot be followed now" in log.read_text(), "the labels")
        server.process.send_signal(signal.SIGHUP)
    return log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_line_of_a_servers_life_has_the_form_and_no_python_in_it(
    workers: int, tmp_path: Path
) -> None:
    text = life_of_a_server(tmp_path / "repository", tmp_path / "log", "--workers", workers)
    lines = text.replace(str(tmp_path), "").splitlines()
    for said in ("loaded ranker version 2", "the server starts without", "draining"):
        assert any(said in line for line in lines), said
    odd = [line for line in lines if not LINE.fullmatch(line)]
    assert odd == []
    long = [line for line in lines if len(line) > MOST_CHARACTERS]
    assert long == []


def test_every_line_of_json_has_the_fields_and_no_python_in_its_message(tmp_path: Path) -> None:
    text = life_of_a_server(tmp_path / "repository", tmp_path / "log", "--log-format", "json")
    events = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message", "process", "pid"} <= set(e) for e in events)
    assert [e["message"] for e in events if re.search(r"[{}\[\]]", e["message"])] == []
    (loaded,) = [e for e in events if e["message"] == "loaded ranker version 2"]
    assert loaded["plan"] == "cpu:2" and loaded["executor"] == "auto"
    assert loaded["products"] == "fp32"
    assert sorted(loaded["kernels"]) == ["bf16 native", "int8 native"]
    assert loaded["one_sample_ms"] > 0 and loaded["largest_batch_ms"] > 0
