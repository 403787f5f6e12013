"""A process's supervisor, which reports its state and writes the hosts file of a front."""

import logging
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serving.cluster.cluster_file import FRONT_SETTINGS, ClusterFile
from serving.cluster.command_lines import front_command, hosts_text, shard_host_command
from serving.cluster.managed_process import ManagedProcess, ProcessState
from serving.cluster.probes import front_probe, shard_host_probe

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 1.0
_HOSTS_FILE = "hosts.toml"
# Known addresses of each replica of each host.
Directory = Callable[[], Mapping[int, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Task:
    """A process of a cluster: a replica of a host, or a front (None), from 0.

    Files are relative to the folder of `cluster.toml`, on every machine.
    """

    cluster: ClusterFile
    host: int | None
    replica: int
    folder: Path

    @property
    def name(self) -> str:
        """Name in messages, and of the actor."""
        role = "front" if self.host is None else f"host-{self.host}"
        return f"{role}-{self.replica}"


class Supervisor:
    """Runs the process of a task on this machine until it is stopped."""

    def __init__(self, task: Task, *, node: str, directory: Directory) -> None:
        """Start a shard host at once, a front when the directory has an address of every host."""
        self._task, self._node, self._directory = task, node, directory
        self._process: ManagedProcess | None = None
        self._stop = threading.Event()
        self._known: dict[int, Sequence[str]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix=f"{task.cluster.name}-{task.name}-"))
        self._follower: threading.Thread | None = None
        if task.host is not None:
            self._process = self._shard_host(task.host)
        else:
            self._follower = threading.Thread(target=self._follow, name="hosts file", daemon=True)
            self._follower.start()

    def state(self) -> ProcessState:
        """State of the process."""
        return ProcessState() if self._process is None else self._process.state

    def stop(self) -> None:
        """End the process when it has drained."""
        self._stop.set()
        if self._follower is not None:
            self._follower.join()
        if self._process is not None:
            self._process.stop()
        for file in self._folder.iterdir():
            file.unlink()
        self._folder.rmdir()

    def _shard_host(self, number: int) -> ManagedProcess:
        cluster, folder = self._task.cluster, self._task.folder
        words = shard_host_command(cluster, number, folder, self._node)
        # The probe calls it as a front does.
        file = self._folder / _HOSTS_FILE
        file.write_text(hosts_text(cluster, folder, {number: [self._node]}))
        drain = _drain(cluster.shard_hosts.settings)
        return ManagedProcess(words, shard_host_probe(file), drain_seconds=drain)

    def _front(self, file: Path) -> ManagedProcess:
        cluster, folder = self._task.cluster, self._task.folder
        words = front_command(cluster, file, folder, self._node)
        drain = _drain(cluster.fronts.settings)
        return ManagedProcess(words, front_probe, drain_seconds=drain)

    def _follow(self) -> None:
        file, told = self._folder / _HOSTS_FILE, ""
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                found, told = dict(self._directory()), ""
            except Exception as error:
                # On any error of Ray the last known addresses stay. Logged once.
                if str(error) != told:
                    _log.warning("the addresses of shard hosts cannot be asked: %s", error)
                told = str(error)
                continue
            if found == self._known or found.keys() != self._task.cluster.hosts.keys():
                continue
            new = file.with_suffix(".new")
            new.write_text(hosts_text(self._task.cluster, self._task.folder, found))
            # A front never reads half of it.
            new.replace(file)
            self._known = found
            if self._process is None:
                self._process = self._front(file)


def _drain(settings: Mapping[str, float]) -> float:
    names = ("drain_seconds", "grace_seconds")
    return sum(float(settings.get(name, FRONT_SETTINGS[name].default)) for name in names)
