import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from serving.cli import app
from sharded_infer.errors import ShardedInferError
from sharded_infer.planning.topology_file import disk_of, parse_topology

SPEC = """
name = "ranker"
[[tables]]
name = "item"
rows = 200_000
dim = 64
[[tables]]
name = "user"
rows = 50_000
dim = 32
features = ["user", "friend"]
[[tables]]
name = "country"
rows = 200
dim = 16
[statistics.item]
pooling_factor = 20
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "model.toml"
    path.write_text(SPEC)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "160"})


def planned(path: Path, *words: object) -> dict[str, object]:
    done = run("plan", *words, "--json", path)
    assert done.exit_code == 0, done.output
    fields: dict[str, object] = json.loads(path.read_text())
    return fields


def test_a_plan_is_explained_and_written(spec: Path, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    done = run("plan", "--spec", spec, "--topology", "h100:4", "--html", page, "--batch", 64)
    assert done.exit_code == 0
    for words in ("plan for h100:4", "no plan beats", r"planned in \d+\.\d+ s"):
        assert re.search(words, done.output)
    assert "country" in done.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    fields = planned(tmp_path / "a.json", "--spec", spec, "--topology", "h100:4", "--batch", 64)
    assert fields["batch"] == 64
    # Printed, it is the last line.
    printed = run("plan", "--spec", spec, "--topology", "h100:4", "--batch", 64, "--json", "-")
    last = json.loads(printed.output.splitlines()[-1])
    assert last["ranks"] == fields["ranks"] and last.keys() == fields.keys()
    assert [rank["rank"] for rank in fields["ranks"]] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    assert fields["max_seconds"] >= fields["bound_seconds"]  # type: ignore[operator]


def test_samples_change_what_is_known_of_features(spec: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"item": [1, 2], "user": 3}\n{"friend": [4, 4, 4, 4]}\n')
    words = ("--spec", spec, "--topology", "cpu:2")
    without = planned(tmp_path / "a.json", *words)
    counted = planned(tmp_path / "b.json", *words, "--samples", samples)
    assert counted["max_seconds"] < without["max_seconds"]  # type: ignore[operator]


def test_a_plan_with_a_front_shows_hosts_and_bytes(spec: Path, tmp_path: Path) -> None:
    topology, page = tmp_path / "three.toml", tmp_path / "plan.html"
    devices = ['[[devices]]\nhost = 0\nmemory = "5MB"\n']
    devices += [f'[[devices]]\nhost = {host}\nmemory = "20MB"\n' for host in (1, 2)]
    topology.write_text("".join(devices) + "[front]\nhost = 0\n")
    words = ("--spec", spec, "--topology", topology, "--batch", 64)
    done = run("plan", *words, "--html", page)
    assert done.exit_code == 0, done.output
    assert "For a request of 64 samples the front asks 1 host: it sends" in done.output
    assert "country: kept by the front, which saves" in done.output
    assert "the front's memory has no room for item" in done.output
    assert "<h2>Hosts</h2>" in page.read_text()
    fields = planned(tmp_path / "plan.json", *words)
    roles = {host["role"]: host for host in fields["hosts"]}  # type: ignore[attr-defined]
    # 64 samples of 20 ids of 4 bytes and a length; 64 columns of fp32.
    assert roles["asked"]["sent_bytes"] == 64 * (20 * 4 + 1)
    assert roles["asked"]["received_bytes"] == 64 * 64 * 4
    assert roles["front"]["tables"] == 2
    expected = fields["front_seconds"] + fields["max_seconds"]  # type: ignore[operator]
    assert fields["request_seconds"] == expected > fields["bound_seconds"]  # type: ignore[operator]


def test_a_lost_rank_is_replanned_and_compared(spec: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    planned(first, "--spec", spec, "--topology", "cpu:3")
    words = ("--spec", spec, "--topology", "cpu:2", "--from-plan", first, "--lost-rank", 0)
    fields = planned(second, *words, "--max-move", "1MB")
    moves = fields["moves"]
    assert moves and {"table", "rank", "bytes"} == set(moves[0])  # type: ignore[index]
    done = run("plan", "--compare", first, second)
    assert done.exit_code == 0
    assert "a.json -> b.json" in done.output and "gone" in done.output and "moves" in done.output


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "expected --spec, or --compare"),
        (("--spec", "{spec}", "--max-move", "1GB"), "need --from-plan"),
        (("--spec", "{spec}", "--topology", "cpu:1x1MB"), "bytes too many"),
        (("--compare", "{spec}", "{spec}"), "not a file that"),
    ],
)
def test_what_cannot_be_planned_is_refused(spec: Path, words: tuple[str, ...], reason: str) -> None:
    done = run("plan", *(word.format(spec=spec) for word in words))
    assert isinstance(done.exception, ShardedInferError)
    assert reason in str(done.exception)


def test_this_machines_constants_are_measured_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    words = ("calibrate", "--out", path, "--ranks", 2)
    done = run(*words, "--disk", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["path"], told["ranks"]) == (str(path), 2)
    topology = parse_topology(str(path))
    (one, two) = topology.devices
    assert one == two and topology.name == "here"
    assert told["device"]["memory_bandwidth"] == pytest.approx(one.memory_bandwidth, rel=1e-3)
    # Between a slow disk and a fast cache.
    assert 1e8 < one.memory_bandwidth <= one.cache_bandwidth < 1e12
    assert 1e8 < one.host_bandwidth < 1e12
    assert 1e-7 < one.launch_seconds < 1e-1
    disk = disk_of(str(path))
    assert disk is not None
    assert told["disk"] == pytest.approx(asdict(disk), rel=1e-3)
    assert 10 < disk.reads_per_second < 1e8 and 1e-7 < disk.read_seconds < 1
    # What was written there is gone.
    assert [file.name for file in tmp_path.iterdir()] == ["here.toml"]
    refused = run(*words, "--disk", tmp_path / "none")
    assert "--disk" in str(refused.exception) and "cannot be written" in str(refused.exception)


def test_a_memory_budget_is_divided_over_the_tables(tmp_path: Path) -> None:
    path = tmp_path / "skewed.toml"
    path.write_text(SPEC + "zipf = 1.05\n[statistics.user]\nzipf = 0.8\n")
    words = ("--spec", path, "--topology", "cpu:1", "--memory-budget", "2MB")
    done = run("plan", *words, "--samples-per-second", 500)
    assert done.exit_code == 0, done.output
    assert "at 500 samples a second; skew is known of 2" in done.output
    assert "the disk reads" not in done.output
    described = tmp_path / "disk.toml"
    disk = "[disk]\nreads_per_second = 20000\nread_seconds = 190e-6\n[[devices]]\n"
    described.write_text(disk)
    on_disk = run("plan", "--spec", path, "--topology", described, *words[4:]).output
    assert re.search(
        r"the disk reads 20,000 rows a second: these are \d+% of them; .* 190 us", on_disk
    )
    kept = planned(tmp_path / "plan.json", *words)["memory_budget"]
    assert isinstance(kept, list)
    item, user, country = kept
    assert sum(one["bytes"] for one in kept) <= 2_000_000
    # Most ids are of `item`, and skewed.
    assert item["rows"] > 20_000 and 0.8 < item["hit_rate"] < 0.95 and 0 < user["rows"] < 50_000
    assert item["reads_per_second"] == pytest.approx(1000 * 20 * (1 - item["hit_rate"]))
    assert country["table"] == "country"
    explained = run("plan", *words, "--explain").output
    assert "what memory buys" in explained
    hits = [float(hit) for hit in re.findall(r"B │ +[\d.]+% │ +([\d.]+)% │", explained)]
    # More memory finds more rows, up to all.
    assert len(hits) >= 4 and hits == sorted(hits) and hits[-1] == 100
    refused = run("plan", *words[:4], "--explain")
    assert "--explain: expected --memory-budget" in str(refused.exception)
    assert "memory_budget" not in planned(tmp_path / "whole.json", *words[:4])
