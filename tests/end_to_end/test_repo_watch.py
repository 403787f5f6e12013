"""`repo watch`: what a running server makes of releases, and exit codes for scripts."""

import json
import subprocess
from pathlib import Path

import pytest

from sharded_infer.repositories.repository import Repository
from tests.support.server_pages import counted
from tests.support.servers import MODEL, command, environment, run, running_server
from tests.support.traffic import Publisher, ask, client_of
from tests.support.waiting import until

POLL = ("--poll-seconds", 0.1)


def test_a_release_is_followed_to_its_end(publisher: Publisher, tmp_path: Path) -> None:
    with (
        running_server(publisher.repository, tmp_path / "log", *POLL) as server,
        client_of(server) as client,
    ):
        ask(client)
        words = ("repo", "watch", server.grpc_url, "--metrics", server.metrics_url, "--json")
        watch = subprocess.Popen(
            command(*words, "--until", 2, "--timeout", 120, "--interval", 0.05),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        assert publisher.good() == 2
        lines = [json.loads(line) for line in watch.stdout]
        watch.stdout.close()
        assert watch.wait(60) == 0
        [one] = first["versions"]
        assert (one["model"], one["version"], one["state"]) == (MODEL, 1, "READY")
        assert one["names"] == ["default"] and one["requests"] == 1 and one["share"] == 1.0
        states = {v["version"]: v["state"] for v in lines[-1]["versions"]}
        assert states == {1: "READY", 2: "READY"}
        shown = run("repo", "watch", server.grpc_url, "--timeout", 0)
        assert shown.returncode == 0 and "READY" in shown.stdout and MODEL in shown.stdout


def test_a_rollback_is_done_when_the_version_is_the_default_and_not_before(
    publisher: Publisher, tmp_path: Path
) -> None:
    repository = Repository(publisher.repository)
    repository.set_label(MODEL, "stable", 1)
    publisher.good()
    follow = ("--follow", "labels:stable")
    with (
        running_server(publisher.repository, tmp_path / "log", *POLL, *follow) as server,
        client_of(server) as client,
    ):
        repository.set_label(MODEL, "stable", 2)
        watch = ("repo", "watch", server.grpc_url, "--json", "--timeout", 110)
        assert run(*watch, "--until", 2).returncode == 0
        # Version 1 is ready still, as it was before: nothing has been rolled back.
        early = run("repo", "watch", server.grpc_url, "--json", "--timeout", 0, "--until", 1)
        assert early.returncode == 2
        before = json.loads(early.stdout.splitlines()[-1])["versions"]
        assert [(v["state"], v["names"]) for v in before] == [
            ("READY", []), ("READY", ["default", "stable"]),
        ]  # fmt: skip
        repository.set_label(MODEL, "stable", 1)
        done = run(*watch, "--until", 1, "--name", "stable")
        assert done.returncode == 0
        after = json.loads(done.stdout.splitlines()[-1])["versions"]
        assert [v["names"] for v in after] == [["default", "stable"], []]
        assert ask(client).version == 1
        repository.set_label(MODEL, "canary", 2)
        repository.set_weights(MODEL, {"stable": 95, "canary": 5})
        share = "sharded_infer_version_share"
        until(lambda: counted(server, share, version="2") == 0.05, "weights")
        page = ("--metrics", server.metrics_url)
        shown = run("repo", "watch", server.grpc_url, "--timeout", 0, *page).stdout
        assert "default, stable" in shown and "95.0%" in shown and "5.0%" in shown


@pytest.mark.parametrize("kind", ["failed", "late"])
def test_the_exit_code_says_how_a_release_went(
    publisher: Publisher, tmp_path: Path, kind: str
) -> None:
    with running_server(publisher.repository, tmp_path / "log", *POLL) as server:
        version = publisher.with_flipped_bit() if kind == "failed" else 7
        words = ("repo", "watch", server.grpc_url, "--json", "--until", version)
        # A failure is told long before that time.
        done = run(*words, "--timeout", 600 if kind == "failed" else 0.5)
        assert done.returncode == (1 if kind == "failed" else 2), done.stderr
    if kind == "failed":
        assert "failed at verify" in done.stdout.splitlines()[-1]


def test_a_server_that_is_not_there_is_named() -> None:
    done = run("repo", "watch", "127.0.0.1:9")
    assert done.returncode != 0 and "127.0.0.1:9: does not answer" in done.stderr
    assert "expected host:port" in run("repo", "watch", "nowhere").stderr
