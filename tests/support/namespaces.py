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
# Of `start_command`: the command itself in a namespace.
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
    """Moves the calling thread there; what sockets it opens from now on are there."""
    with (_FOLDER / name).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"cannot join namespace {name}")


class Network:
    """Namespaces that see each other by their links alone.

    Attributes:
        front: name of the front's namespace.
        addresses: of the hosts, without ports.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Links them.

        Args:
            names: of the front's namespace, then of each host's.
        """
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
        """Takes a host's link down: what is sent to it is lost, and nobody is told."""
        _ip(f"-n {self._hosts[host]} link set front down")

    def mend(self, host: int) -> None:
        """Brings a host's link up."""
        _ip(f"-n {self._hosts[host]} link set front up")

    def front_program(self) -> str:
        """Runs a command beside the front, as `start_command` takes it."""
        return _PROGRAM.format(name=self.front)

    def host_program(self, host: int) -> str:
        """Runs a command beside a host, as `start_command` takes it."""
        return _PROGRAM.format(name=self._hosts[host])


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """Namespaces for a front and its hosts; skips the test where they may not be made."""
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
