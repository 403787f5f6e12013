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
from serving.cluster.command_lines import hosts_text, process_command
from serving.cluster.managed_process import ManagedProcess, ProcessState
from serving.cluster.probes import front_probe, shard_host_probe

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 1.0
_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Task:
    """A replica of a host, or of fronts (None); files are relative to the folder everywhere."""

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
    hosts = [
        (replica, number)
        for number, host in cluster.hosts.items()
        for replica in range(host.replicas)
    ]
    fronts = [(replica, None) for replica in range(cluster.fronts.count)]
    return [Task(cluster, host, replica, folder) for replica, host in [*sorted(hosts), *fronts]]


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
    """Runs a task's process where Ray has placed it; fronts get the last addresses of all hosts."""

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
        self._hosts_file = self._folder / "hosts.toml"
        self._follower: threading.Thread | None = None
        if task.host is not None:
            # The probe calls it as a front does.
            hosts = hosts_text(task.cluster, task.folder, {task.host: [self._node]})
            self._hosts_file.write_text(hosts)
            self._process = self._started()
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

    def _started(self) -> ManagedProcess:
        task, file = self._task, self._hosts_file
        words = process_command(task.cluster, task.host, file, task.folder, self._node)
        section = task.cluster.fronts if task.host is None else task.cluster.shard_hosts
        drain = sum(
            float(section.settings.get(name, FRONT_SETTINGS[name].default))
            for name in ("drain_seconds", "grace_seconds")
        )
        probe = front_probe if task.host is None else shard_host_probe(file)
        return ManagedProcess(words, probe, drain_seconds=drain)

    def _follow(self) -> None:
        cluster, folder, file, told = self._task.cluster, self._task.folder, self._hosts_file, ""
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
            if addresses == written or addresses.keys() != cluster.hosts.keys():
                continue
            new = file.with_suffix(".new")
            new.write_text(hosts_text(cluster, folder, addresses))
            # A front never reads half of it.
            new.replace(file)
            written = addresses
            if self._process is None:
                self._process = self._started()

    def _addresses(self) -> dict[int, list[str]]:
        tasks = tasks_of(self._task.cluster, self._task.folder)
        hosts = {task.name: task.host for task in tasks if task.host is not None}
        for name, state in states_of(list(hosts)).items():
            if state.process.ready is not None:
                self._known[name] = str(state.process.ready["grpc_url"])
        # A moved replica may have a port that another one had: each address is listed once.
        addresses: dict[int, dict[str, None]] = {}
        for name in filter(self._known.__contains__, hosts):
            addresses.setdefault(hosts[name], {})[self._known[name]] = None
        return {host: list(listed) for host, listed in addresses.items()}
