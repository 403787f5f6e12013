import json
import os
import signal
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from serving.commands.models.publish import PublishOptions
from serving.commands.models.publish_changes import ChangeOptions, publish_changes
from serving.host.background import LOWEST
from sharded_infer import ChangedRows, write_changes
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.tower import export_tower
from tests.support.delta_model import Scorer, delta_spec, publish_whole, trained_rows
from tests.support.servers import Command, CommandProcess, run, start_command
from tests.support.waiting import until


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    spec = delta_spec()
    publish_whole(spec, trained_rows(spec), tmp_path / "models")
    return tmp_path / "models"


def changes_file(path: Path, *ids: int) -> Path:
    rows = ChangedRows(torch.tensor(ids).numpy(), torch.full((len(ids), 16), float(ids[0])))
    write_changes({"item": rows}, path)
    return path


def ended(process: CommandProcess) -> int:
    code = process.wait()
    assert process.stdout is not None
    process.stdout.close()
    return code


def answer_of(*words: object) -> Any:
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_changed_rows_are_published_from_files(repository: Path, tmp_path: Path) -> None:
    files = [changes_file(tmp_path / f"{n}.safetensors", n, 5) for n in (1, 2)]
    words = [word for file in files for word in ("--changed", file)]
    published = answer_of("publish", "-r", repository, *words, "--note", "two files")
    assert published["version"] == 2
    assert published["base"] == 1
    assert published["changed_rows"] == {"item": 3}
    assert published["stored_bytes"] == 3 * 20
    provenance = open_artifact(repository / "ranker" / "2").manifest.provenance
    assert provenance is not None
    assert provenance.note == "two files"
    compacted = answer_of("repo", "compact", repository, "ranker")
    assert (compacted["version"], compacted["compacted"], compacted["overlays"]) == (3, 2, 1)


def test_rows_of_whole_weights_that_differ_are_found(repository: Path, tmp_path: Path) -> None:
    weights = trained_rows(delta_spec())
    weights["item"][[7, 2999]] += 1
    weights["item"] = torch.cat([weights["item"], torch.ones(1, 16)])
    save_file(
        {f"{name}.weight": rows for name, rows in weights.items()}, tmp_path / "w.safetensors"
    )
    words = ("publish", "-r", repository, "--base", 1, "--weights", tmp_path / "w.safetensors")
    assert answer_of(*words)["changed_rows"] == {"item": 3}
    again = (*words[:4], 2, *words[5:])
    assert "no row differs from the base's" in run(*again).stderr
    save_file({"item.weight": weights["item"][:9]}, tmp_path / "w.safetensors")
    said = "table 'item': expected 3001 rows and more, as the base has, got 9"
    assert said in run(*again).stderr


def test_another_tower_comes_with_the_rows(repository: Path, tmp_path: Path) -> None:
    program = export_tower(
        Scorer(32, seed=4),
        dense={},
        embedding_width=32,
        outputs=("score",),
        precision=Precision.FP32,
    )
    write_program(program, tmp_path / "tower.pt2")
    words = ("publish", "-r", repository, "--tower", tmp_path / "tower.pt2")
    changed = changes_file(tmp_path / "1.safetensors", 1)
    assert answer_of(*words, "--changed", changed)["changed_rows"] == {"item": 1}
    base, delta = (repository / "ranker" / str(number) / "tower.pt2" for number in (1, 2))
    assert base.read_bytes() != delta.read_bytes()


def priority_of(thread: int) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


@pytest.mark.parametrize(
    ("in_use", "nice", "lowered"), [(False, None, False), (True, None, True), (True, 0, False)]
)
def test_cores_are_left_to_a_server_of_the_base(
    repository: Path, tmp_path: Path, in_use: bool, nice: int | None, lowered: bool
) -> None:
    served = Repository(repository)
    if in_use:
        served.fetch("ranker", 1)
    changed = [changes_file(tmp_path / "changed.safetensors", 1)]
    options = dict.fromkeys(field.name for field in fields(PublishOptions))
    options["repository"] = str(repository)
    before, found = priority_of(threading.get_native_id()), []

    def publish() -> None:
        publish_changes(ChangeOptions(changed=changed, nice=nice), options, as_json=True)
        found.append(priority_of(threading.get_native_id()))

    thread = threading.Thread(target=publish)
    thread.start()
    thread.join()
    assert found == [LOWEST if lowered else before]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--changed", "x", "--part", "1/2"), "changed rows are published by one process"),
        (("--changed", "x", "--weights", "w"), "--changed and --weights exclude each other"),
        (("--changed", "x", "--topology", "cpu:2"), "--topology: changed rows have their base's"),
        (("--base", "1"), "--base: expected --changed, --weights or --tower"),
        (("--follow", "x", "--base", "1"), "--follow takes no --changed, --tower or --base"),
        ((), "--spec: expected it, or --module to publish a trained module"),
        (("--changed", "none.safetensors"), "none.safetensors: cannot be read"),
        (("--changed", "x", "--model", "other"), "no model 'other'; it holds ranker"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    repository: Path, words: tuple[str, ...], message: str, sharded_infer: Command
) -> None:
    sharded_infer("publish", "-r", repository, *words).refused(message)
    assert Repository(repository).versions("ranker") == [1]


def test_files_are_published_as_they_come(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    changes_file(folder / "step_9.safetensors", 9)
    changes_file(folder / "step_10.safetensors", 10)
    words = ("publish", "-r", repository, "--follow", folder, "--every", 0.2, "--json")
    opened = Repository(repository)

    def through(version: int) -> str | None:
        base = opened.manifest("ranker", version).base
        return None if base is None else base.changes

    log = tmp_path / "follower"

    def follow() -> CommandProcess:
        with log.open("w") as errors:
            return start_command(*words, stderr=errors)

    process = follow()
    until(lambda: 2 in opened.versions("ranker"), "both files are one version")
    assert priority_of(process.pid) == LOWEST
    assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
    assert through(2) == "step_10.safetensors"
    changes_file(folder / "step_11.safetensors", 11)
    until(lambda: 3 in opened.versions("ranker"), "the next file is a version")
    process.kill()
    ended(process)
    changes_file(folder / "step_12.safetensors", 12)
    process = follow()
    until(lambda: 4 in opened.versions("ranker"), "a new follower goes on")
    assert through(4) == "step_12.safetensors"
    (folder / "step_13.safetensors").write_bytes(b"damaged")
    assert ended(process) == 1
    assert "step_13.safetensors" in log.read_text()
    assert opened.versions("ranker") == [1, 2, 3, 4]
    (folder / "step_13.safetensors").unlink()
    process = follow()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    ended(process)
    assert opened.versions("ranker") == [1, 2, 3, 4]
