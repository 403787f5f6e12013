import fcntl
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from serving.host import unix_socket
from serving.host.unix_socket import MOST_PATH_BYTES, UnixSocket, check_path
from sharded_infer.errors import InputError

KILLED = """
import os, signal, sys
from serving.host.unix_socket import UnixSocket
kept = UnixSocket(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_taken_socket_is_the_takers_and_the_file_still_removed(path: str) -> None:
    made = UnixSocket(path)
    with made.take() as taken:
        assert connects(path) and not taken.getblocking()
    assert not connects(path) and Path(path).exists()
    made.close()
    assert not Path(path).exists()


def test_the_file_has_the_mode_of_the_umask(path: str) -> None:
    for mask, mode in ((0o022, 0o755), (0o077, 0o700), (0o007, 0o770)):
        with umask(mask), closing(UnixSocket(path)):
            assert stat.S_IMODE(os.stat(path).st_mode) == mode


def test_the_socket_of_a_killed_server_is_replaced(path: str) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, path], check=False, timeout=240)
    assert killed.returncode < 0 and Path(path).is_socket() and not connects(path)
    with closing(UnixSocket(path)):
        assert connects(path)


def test_a_socket_that_another_server_listens_on_is_left_to_it(path: str) -> None:
    with closing(UnixSocket(path)):
        with pytest.raises(InputError, match=f"{path} cannot be had: another process listens"):
            UnixSocket(path)
        assert connects(path)


def test_a_socket_whose_backlog_is_full_is_somebodys(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as full, socket.socket(socket.AF_UNIX) as waiting:
        full.bind(path)
        full.listen(0)
        waiting.connect(path)
        with pytest.raises(InputError, match="another process listens there"):
            UnixSocket(path)
        assert Path(path).is_socket()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "pipe"])
def test_what_is_no_socket_is_refused_and_left_as_it_is(path: str, kind: str) -> None:
    target = Path(path + "-target")
    if kind == "file":
        Path(path).write_text("words")
    elif kind == "folder":
        Path(path).mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(target))
        Path(path).symlink_to(target)
    before = os.lstat(path)
    with pytest.raises(InputError, match=f"socket {path} cannot be had: the file there is no"):
        UnixSocket(path)
    assert os.path.samestat(before, os.lstat(path))


def test_the_file_of_another_server_is_not_removed(path: str) -> None:
    first = UnixSocket(path)
    os.unlink(path)
    with closing(UnixSocket(path)):
        first.close()
        assert connects(path)


def test_a_forked_process_leaves_the_file_to_the_one_that_made_it(path: str) -> None:
    with closing(UnixSocket(path)) as made:
        child = os.fork()
        if child == 0:
            made.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert connects(path)


def test_two_servers_that_find_an_old_file_do_not_both_replace_it(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_socket, "_LOCK_SECONDS", 0.05)
    other = os.open(Path(path).parent, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=f"socket {path} cannot be had: Resource temporarily"):
            UnixSocket(path)
    finally:
        os.close(other)
    with closing(UnixSocket(path)):
        assert connects(path)


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ("/" + "x" * MOST_PATH_BYTES, "expected a path of 1 to 107 bytes, got 108"),
        ("é" * 54, "expected a path of 1 to 107 bytes, got 108"),
        ("", "got 0"),
        ("/a\0b", "without zero bytes"),
    ],
)
def test_a_path_that_no_socket_can_have_is_refused(refused: str, words: str) -> None:
    check_path("/" + "x" * (MOST_PATH_BYTES - 1))
    with pytest.raises(InputError, match=words):
        check_path(refused)
