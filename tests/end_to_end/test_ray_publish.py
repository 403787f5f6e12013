"""`cluster publish`, on several nodes of Ray on this machine."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from serving.commands.cluster import store_part_here
from serving.commands.models.publish import PublishJob, PublishOptions
from sharded_infer.errors import InputError, StorageError
from sharded_infer.progress import no_progress
from sharded_infer.repositories.repository import Repository
from tests.support.part_checkpoint import ROWS, manifest_of, write_checkpoint
from tests.support.ray_nodes import RayNodes, ray_nodes
from tests.support.servers import run, start_command
from tests.support.waiting import until

pytestmark = [
    pytest.mark.timeout(1800),
    # Ray leaves its own to the collector.
    pytest.mark.filterwarnings("ignore"),
]
SECONDS = 480.0
# Two parts fit on a node.
NODES, NODE_BYTES, PART_MEMORY = 2, 3100, "1.5KB"
PARTS = 3


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(NODES, memory=NODE_BYTES) as started:
        yield started


@pytest.fixture(scope="module")
def publishing(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    return (*write_checkpoint(tmp_path_factory.mktemp("checkpoint")), "--json")


def on_ray(nodes: RayNodes) -> tuple[object, ...]:
    return ("--parts", PARTS, "--ray-address", nodes.address, "--part-memory", PART_MEMORY)


def makers(nodes: RayNodes) -> list[int]:
    """Processes that make a part on these nodes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if not (folder / "cmdline").read_bytes().startswith(b"ray::publish_part_task"):
                continue
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if nodes.address.encode() in Path("/proc", parent, "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def test_a_version_in_parts_on_ray_equals_a_whole_one_though_a_process_was_killed(
    nodes: RayNodes, publishing: tuple[object, ...], tmp_path: Path
) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    words = ("cluster", "publish", *publishing, "-r", repository, *on_ray(nodes))
    with log.open("w") as errors:
        process = start_command(*words, stderr=errors)
    found: list[int] = []
    until(lambda: found or found.extend(makers(nodes)), "a part is being made", SECONDS)
    os.kill(found[0], signal.SIGKILL)
    assert process.wait(SECONDS) == 0, log.read_text()
    assert process.stdout is not None
    with process.stdout as printed:
        told = json.loads(printed.read())
    made = told.pop("parts")
    assert [one["part"] for one in made] == list(range(1, PARTS + 1))
    assert sum(one["rows"] for one in made) == sum(ROWS.values())
    assert sorted(one["starts"] for one in made) == [1, 1, 2]
    assert len({one["node"] for one in made}) == NODES

    whole = run("publish", *publishing, "-r", repository, seconds=SECONDS)
    assert whole.returncode == 0, whole.stderr
    expected = json.loads(whole.stdout)
    assert (told.pop("version"), expected.pop("version")) == (1, 2)
    assert told.pop("path") != expected.pop("path")
    assert told.pop("planning_seconds") > 0 < expected.pop("planning_seconds")
    assert told == expected
    stored = Repository(repository)
    assert manifest_of(stored, 1) == manifest_of(stored, 2)
    assert stored.parts.names("ranker") == []


def test_an_interrupt_ends_the_parts_and_publishes_nothing(
    nodes: RayNodes, publishing: tuple[object, ...], tmp_path: Path
) -> None:
    repository, log = tmp_path / "repository", tmp_path / "log"
    words = ("cluster", "publish", *publishing, "-r", repository, *on_ray(nodes))
    with log.open("w") as errors:
        process = start_command(*words, stderr=errors)
    until(lambda: makers(nodes), "a part is being made", SECONDS)
    process.send_signal(signal.SIGINT)
    assert process.wait(SECONDS) != 0
    assert process.stdout is not None
    process.stdout.close()
    until(lambda: not makers(nodes), "the parts have ended", SECONDS)
    assert Repository(repository).models() == []


def test_what_does_not_fit_or_cannot_be_stored_is_named(nodes: RayNodes, tmp_path: Path) -> None:
    words = ("cluster", "publish", *write_checkpoint(tmp_path), "-r", tmp_path, *on_ray(nodes))
    done = run(*words, "--part-memory", "20GB", seconds=SECONDS)
    assert done.returncode == 1 and done.stdout == ""
    assert "part wants 20.0 GB, no node has more than 3.10 kB free" in done.stderr

    weights = tmp_path / "weights.safetensors"
    trained = load_file(weights)
    trained["shop.weight"][-1] = float("nan")
    save_file(trained, weights)
    done = run(*words, seconds=SECONDS)
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(r"error: part \d/3 on node \S+ \(\w{8}\): .*'shop'", done.stderr)


def test_a_machine_without_the_checkpoint_or_the_repository_says_so(tmp_path: Path) -> None:
    _, spec, _, weights = write_checkpoint(tmp_path)

    def store(weights: Path, staged: Path) -> None:
        job = PublishJob.read(PublishOptions(Path(str(spec)), weights, "/models"))
        store_part_here(job, staged, 1, 1, no_progress)

    with pytest.raises(InputError, match="absent: expected weights that every machine can read"):
        store(tmp_path / "absent", tmp_path)
    with pytest.raises(StorageError, match="/models: expected the repository in a folder that all"):
        store(Path(str(weights)), tmp_path / "absent")
