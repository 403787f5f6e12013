"""Versions that shard hosts keep for fronts, and a front that dies."""

from contextlib import ExitStack
from pathlib import Path

from serving.shard_host.held_shares import LEASE_SECONDS
from tests.support.fronts import hosts_file, running_hosts
from tests.support.marked_rows import HOSTS, MODEL, publish_marked
from tests.support.marked_traffic import marked_traffic
from tests.support.servers import running_server
from tests.support.waiting import until

# It serves what is newest when it starts.
STILL = ("--poll-seconds", 0)


def test_hosts_let_a_killed_fronts_version_go_after_its_lease_and_keep_a_living_fronts(
    tmp_path: Path,
) -> None:
    repository = tmp_path / "repository"
    publish_marked(repository, 1)
    with ExitStack() as stack:
        quick = ("--poll-seconds", 0.1)
        hosts = stack.enter_context(running_hosts(repository, tmp_path, range(HOSTS), *quick))
        logs = [host.log for host in hosts.values()]

        def until_all_say(words: str) -> float:
            return until(lambda: all(words in log.read_text() for log in logs), words)

        options = ("--shard-hosts", hosts_file(tmp_path, hosts), *STILL)
        killed = stack.enter_context(
            running_server(repository, tmp_path / "killed", *options, exit_code=None)
        )
        publish_marked(repository, 2)
        until_all_say(f"holds {MODEL} version 2")
        living = stack.enter_context(running_server(repository, tmp_path / "living", *options))
        with marked_traffic([living.grpc_url]) as of_living:
            with marked_traffic([killed.grpc_url]) as of_killed:
                for version in (3, 4):
                    publish_marked(repository, version)
                    until_all_say(f"holds {MODEL} version {version}")
                of_killed.go_on()
            killed.process.kill()
            took = until_all_say(f"let go of {MODEL} version 1")
            of_living.go_on()
        assert not any(f"let go of {MODEL} version 2" in log.read_text() for log in logs)
    # Its last word may have come some seconds before its end.
    assert took > LEASE_SECONDS / 2
    for seen, version in ((of_killed, 1), (of_living, 2)):
        assert seen.errors == [] and seen.wrong == []
        assert set(seen.versions) == {version}
