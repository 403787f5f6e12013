import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serving.cluster.managed_process import ManagedProcess
from serving.cluster.probes import shard_host_probe
from tests.support.servers import Ranker
from tests.support.shard_host_processes import publish_for_hosts
from tests.support.tls import issue_files
from tests.support.waiting import until

TOKEN = "front-0123456789abcdef"  # noqa: S105


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_for_hosts(tmp_path_factory.mktemp("managed"), 3, 1400)


def words_of(repository: object, *more: str) -> list[str]:
    ports = ("--port=0", "--http-port=0")
    return ["serve-shards", f"--repository={repository}", *ports, "--json", *more]


def hosts_file(folder: Path, more: str = "") -> Path:
    file = folder / "hosts.toml"
    file.write_text(f'{more}[hosts]\n1 = "any:1"\n')
    return file


@contextmanager
def managed(words: list[str], folder: Path, more: str = "") -> Iterator[ManagedProcess]:
    process = ManagedProcess(words, shard_host_probe(hosts_file(folder, more)), drain_seconds=10)
    try:
        yield process
    finally:
        process.stop()


def lives(process_id: int) -> bool:
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_process_is_started_again_and_one_that_is_told_to_ends(
    published: Ranker, tmp_path: Path
) -> None:
    with managed(words_of(published.repository, "--host-number=1"), tmp_path) as process:
        until(lambda: process.state.is_healthy, "it is healthy")
        first = process.state
        assert first.versions == ("ranker@1",) and first.restarts == 0 and not first.problem
        assert first.process_id is not None
        os.kill(first.process_id, signal.SIGKILL)
        until(lambda: process.state.restarts == 1 and process.state.is_healthy, "it is back")
        second = process.state.process_id
        assert second not in (None, first.process_id)
    assert second is not None and not lives(second)
    assert process.state.process_id is None and not process.state.is_healthy


def test_a_host_that_holds_nothing_is_not_healthy(published: Ranker, tmp_path: Path) -> None:
    with managed(words_of(published.repository, "--host-number=7"), tmp_path) as process:
        until(lambda: process.state.problem, "it is asked")
        assert process.state.problem == "holds no version"
        assert process.state.ready is not None and not process.state.is_healthy


def test_a_host_is_asked_over_tls_with_the_token_of_the_file(
    published: Ranker, tmp_path: Path
) -> None:
    files = issue_files(tmp_path)
    tokens, token = tmp_path / "tokens", tmp_path / "token"
    tokens.write_text(f"{TOKEN} predict # front\n")
    tokens.chmod(0o600)
    token.write_text("none-0123456789abcdef")
    words = words_of(published.repository, "--host-number=1", f"--tokens-file={tokens}")
    words += [*map(str, files.options())]
    more = f'token_file = "token"\n[tls]\nca = "{files.ca}"\n'
    with managed(words, tmp_path, more) as process:
        until(lambda: process.state.problem, "it refuses the token")
        assert process.state.ready is not None and process.state.restarts == 0
        token.write_text(TOKEN)
        until(lambda: process.state.is_healthy, "the file is read again")
        ready = process.state.ready
        assert ready is not None
        # As a pod of this name asks.
        checked = tmp_path / "checked.toml"
        checked.write_text(
            f'{more}[hosts]\n1 = "{ready["grpc_url"]}"\n'.replace("[tls]", "\n[tls]")
        )
        for pod, code in (("127", 0), ("host-1-0", 1)):
            command = [sys.executable, "-m", "serving.cluster.host_check", str(checked)]
            done = subprocess.run(command, env={**os.environ, "HOSTNAME": pod}, check=False)
            assert done.returncode == code


def test_why_a_process_cannot_start_is_told(tmp_path: Path) -> None:
    with managed(words_of(tmp_path / "none", "--host-number=1"), tmp_path) as process:
        until(lambda: process.state.problem, "it ends")
        assert "ended with exit code 1: error:" in process.state.problem
        assert str(tmp_path / "none") in process.state.problem
        assert not process.state.was_ready


def test_a_process_ends_with_the_one_that_watches_it(published: Ranker, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from serving.cluster.managed_process import ManagedProcess\n"
        "from serving.cluster.probes import shard_host_probe\n"
        "process = ManagedProcess(sys.argv[2:], shard_host_probe(Path(sys.argv[1])), "
        "drain_seconds=1)\n"
        "while not process.state.ready: time.sleep(0.1)\n"
        "print(process.state.process_id, flush=True)\ntime.sleep(600)\n"
    )
    words = words_of(published.repository, "--host-number=1")
    command = [sys.executable, "-c", script, str(hosts_file(tmp_path)), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        child = int(watcher.stdout.readline())
        assert lives(child)
        watcher.kill()
        until(lambda: not lives(child), "it ends too")
