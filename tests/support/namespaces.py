"""Network namespaces: one for a front, one for each shard host, and a link from it to each."""

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_FOLDER = Path("/run/netns")
_NEW_NETWORK = 0x40000000
# For `start_command`: the command itself in a namespace.
_PROGRAM = """
from tests.support.namespaces import join
join({name!r})
from serving.cli import main
main()
"""


def _ip(words: str) -> None:
    program = shutil.which("ip") or "ip"
    subprocess.run([program, *words.split()], check=True, capture_output=True, text=True)


def join(name: str) -> None:
    """Move the calling thread into a namespace; its new sockets are there."""
    with (_FOLDER / name).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot join namespace {name}")


class Network:
    """Namespaces that only see each other by their links; addresses are hosts', without ports."""

    def __init__(self, names: Sequence[str]) -> None:
        self.front, *self._hosts = names
        self.addresses = [f"198.18.{host}.2" for host in range(len(self._hosts))]
        for name in names:
            _ip(f"-n {name} link set lo up")
        for host, name in enumerate(self._hosts):
            near = f"host{host}"
            _ip(f"-n {self.front} link add {near} type veth peer front netns {name}")
            _ip(f"-n {self.front} address add 198.18.{host}.1/30 dev {near}")
            _ip(f"-n {self.front} link set {near} up")
            _ip(f"-n {name} address add {self.addresses[host]}/30 dev front")
            self.mend(host)

    def cut(self, host: int) -> None:
        """Take a host's link down: packets to it are lost silently."""
        _ip(f"-n {self._hosts[host]} link set front down")

    def mend(self, host: int) -> None:
        _ip(f"-n {self._hosts[host]} link set front up")

    def front_program(self) -> str:
        return _PROGRAM.format(name=self.front)

    def host_program(self, host: int) -> str:
        return _PROGRAM.format(name=self._hosts[host])


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """Namespaces for a front and its hosts; skips the test if they are not allowed."""
    if os.geteuid():
        pytest.skip("network namespaces are root's")
    made = secrets.token_hex(3)
    names = [f"{made}-front", *(f"{made}-{host}" for host in range(hosts))]
    with ExitStack() as stack:
        for name in names:
            try:
                _ip(f"netns add {name}")
            except (subprocess.CalledProcessError, OSError) as error:
                pytest.skip(f"network namespaces may not be made here: {error}")
            stack.callback(_ip, f"netns del {name}")
        yield Network(names)
