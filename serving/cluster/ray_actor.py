"""Supervisors as actors of Ray, and their states."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address

from serving.cluster.cluster_file import ClusterFile
from serving.cluster.managed_process import ProcessState
from serving.cluster.supervisor import Supervisor, Task

_ANSWER_SECONDS = 2.0


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
    found: dict[str, TaskState] = {}
    for name, answer in asked.items():
        try:
            found[name] = ray.get(answer, timeout=0)
        except (RayError, GetTimeoutError):
            # Its machine or process is lost, and it is being restarted elsewhere.
            continue
    return found


class SupervisorActor:
    """A supervisor where Ray has placed it."""

    def __init__(self, task: Task) -> None:
        """Start the process of the task, also after Ray has moved the actor."""
        self._hosts = {
            one.name: one.host
            for one in tasks_of(task.cluster, task.folder)
            if one.host is not None
        }
        self._known: dict[str, str] = {}
        self._node, context = get_node_ip_address(), ray.get_runtime_context()
        self._node_id = context.get_node_id()
        with warnings.catch_warnings():
            # Ray warns about its own calls.
            warnings.simplefilter("ignore")
            self._is_moved = bool(context.was_current_actor_reconstructed)
        self._supervisor = Supervisor(task, node=self._node, directory=self._addresses)

    def state(self) -> TaskState:
        """State of the process."""
        return TaskState(self._supervisor.state(), self._node, self._node_id, self._is_moved)

    def stop(self) -> None:
        """Return when the process has drained and ended."""
        self._supervisor.stop()

    def _addresses(self) -> Mapping[int, Sequence[str]]:
        """Addresses of all replicas; while one moves, its last."""
        for name, state in states_of(list(self._hosts)).items():
            if state.process.ready is not None:
                self._known[name] = str(state.process.ready["grpc_url"])
        found: dict[int, list[str]] = {}
        for name, host in self._hosts.items():
            if host is not None and name in self._known:
                listed = found.setdefault(host, [])
                # A moved replica may have a port that another one had.
                if self._known[name] not in listed:
                    listed.append(self._known[name])
        return found
