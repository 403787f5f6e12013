"""Supervisors of a cluster's processes, as actors of Ray, and their states."""

import logging
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address

from serving.cluster.cluster_file import FRONT_SETTINGS, ClusterFile
from serving.cluster.command_lines import front_command, hosts_text, shard_host_command
from serving.cluster.managed_process import ManagedProcess, ProcessState
from serving.cluster.probes import front_probe, shard_host_probe

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0
_HOSTS_FILE = "hosts.toml"


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


@dataclass(frozen=True, slots=True)
class TaskState:
    """State and place of a process; moved if Ray has restarted the actor."""

    process: ProcessState
    node: str
    node_id: str
    is_moved: bool


def tasks_of(cluster: ClusterFile, folder: Path) -> list[Task]:
    """All processes: shard hosts first, one replica of each host after another."""
    most = max(host.replicas for host in cluster.hosts.values())
    hosts = [
        Task(cluster, number, replica, folder)
        for replica in range(most)
        for number, host in sorted(cluster.hosts.items())
        if replica < host.replicas
    ]
    return [*hosts, *(Task(cluster, None, one, folder) for one in range(cluster.fronts.count))]


def actor_of(name: str) -> ActorHandle | None:
    """Actor of a task in this namespace, if there is one."""
    try:
        return ray.get_actor(name)
    except ValueError:
        return None


def states_of(names: Sequence[str]) -> Mapping[str, TaskState]:
    """States of the actors that answer in time."""
    asked = {name: actor.state.remote() for name in names if (actor := actor_of(name)) is not None}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
    states: dict[str, TaskState] = {}
    for name, answer in asked.items():
        try:
            states[name] = ray.get(answer, timeout=0)
        except (RayError, GetTimeoutError):
            # Its machine or process is lost, and it is being restarted elsewhere.
            continue
    return states


class Supervisor:
    """Runs the process of a task where Ray has placed it, until it is stopped.

    A front's hosts file has the addresses of all replicas; while one moves, its last.
    """

    def __init__(self, task: Task) -> None:
        """Start a shard host at once, a front when every host has an address."""
        self._task = task
        self._node, context = get_node_ip_address(), ray.get_runtime_context()
        self._node_id = context.get_node_id()
        with warnings.catch_warnings():
            # Ray warns about its own calls.
            warnings.simplefilter("ignore")
            self._is_moved = bool(context.was_current_actor_reconstructed)
        self._process: ManagedProcess | None = None
        self._stop = threading.Event()
        self._known: dict[str, str] = {}
        self._folder = Path(tempfile.mkdtemp(prefix=f"{task.cluster.name}-{task.name}-"))
        self._follower: threading.Thread | None = None
        if task.host is not None:
            self._process = self._shard_host(task.host)
        else:
            self._follower = threading.Thread(target=self._follow, name="hosts file", daemon=True)
            self._follower.start()

    def state(self) -> TaskState:
        """State of the process."""
        process = ProcessState() if self._process is None else self._process.state
        return TaskState(process, self._node, self._node_id, self._is_moved)

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
        written: dict[int, list[str]] = {}
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                addresses, told = self._addresses(), ""
            except Exception as error:
                # On any error of Ray the last known addresses stay. Logged once.
                if str(error) != told:
                    _log.warning("the addresses of shard hosts cannot be asked: %s", error)
                told = str(error)
                continue
            if addresses == written or addresses.keys() != self._task.cluster.hosts.keys():
                continue
            new = file.with_suffix(".new")
            new.write_text(hosts_text(self._task.cluster, self._task.folder, addresses))
            # A front never reads half of it.
            new.replace(file)
            written = addresses
            if self._process is None:
                self._process = self._front(file)

    def _addresses(self) -> dict[int, list[str]]:
        hosts = [
            one for one in tasks_of(self._task.cluster, self._task.folder) if one.host is not None
        ]
        for name, state in states_of([one.name for one in hosts]).items():
            if state.process.ready is not None:
                self._known[name] = str(state.process.ready["grpc_url"])
        addresses: dict[int, list[str]] = {}
        for one in hosts:
            if one.host is not None and one.name in self._known:
                listed = addresses.setdefault(one.host, [])
                # A moved replica may have a port that another one had.
                if self._known[one.name] not in listed:
                    listed.append(self._known[one.name])
        return addresses


def _drain(settings: Mapping[str, float]) -> float:
    names = ("drain_seconds", "grace_seconds")
    return sum(float(settings.get(name, FRONT_SETTINGS[name].default)) for name in names)
