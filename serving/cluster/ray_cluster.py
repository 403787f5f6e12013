"""A cluster's processes on Ray: placed, started, replaced one after another, ended.

Ray places an actor for each process, restarts it when its machine or its process is lost, and
finds it by name. Lookups go from process to process, and never through Ray.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from serving.cluster.capacity import Wanted, misfit
from serving.cluster.cluster_file import ClusterFile
from serving.cluster.ray_connection import connect, free_in_all, unreserved_rooms
from serving.cluster.supervisor import Supervisor, Task, TaskState, actor_of, states_of, tasks_of
from sharded_infer.errors import CapacityError, InputError, ShardedInferError
from sharded_infer.progress import Progress, no_progress

_PLACE_SECONDS = 20.0
_LOOK_SECONDS = 0.5
# Time for fronts to get a replica's new address before the next one is replaced.
_SETTLE_SECONDS = 5.0
_END_SECONDS = 120.0
# A process that has never been ready after so many restarts needs a person.
_MOST_STARTS = 3


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """A process in the output of `cluster status`; `host` is None for a front.

    The state is `ready`, `starting`, `unhealthy`, `lost` (Ray is moving it), or `missing`. Restarts
    are of the process since its actor started, and one if Ray has moved the actor.
    """

    name: str
    host: int | None
    replica: int
    state: str
    node: str | None
    node_id: str | None
    address: str | None
    http_url: str | None
    process_id: int | None
    versions: tuple[str, ...]
    restarts: int
    problem: str


class RayCluster:
    """The processes of one `cluster.toml`, in a namespace of Ray with its name."""

    def __init__(self, cluster: ClusterFile, folder: Path) -> None:
        """Connect to Ray; raise InputError if it does not answer. The folder is the file's."""
        self._cluster = cluster
        self._tasks = tasks_of(cluster, folder.resolve())
        connect(cluster.ray.address, "ray.address", cluster.name)

    def close(self) -> None:
        """Disconnect from Ray; the processes go on."""
        ray.shutdown()

    def up(self, seconds: float, progress: Progress = no_progress) -> list[ProcessReport]:
        """Start missing processes, and return when all are ready.

        Raises CapacityError if the machines lack resources, ShardedInferError if one is late.
        """
        groups = self._place()
        for task in self._tasks:
            self._start(task, groups)
        self._wait([task.name for task in self._tasks], monotonic() + seconds, progress)
        return self.status()

    def status(self) -> list[ProcessReport]:
        """All processes of the file, running or not."""
        states = states_of([task.name for task in self._tasks])
        return [_report(task, states.get(task.name), actor_of(task.name)) for task in self._tasks]

    def roll(self, seconds: float, progress: Progress = no_progress) -> list[ProcessReport]:
        """Replace the processes one after another, waiting up to `seconds` for each to be ready.

        Raises InputError if the file has other replicas or resources; else as `up`.
        """
        groups = self._place(make=False)
        for number, task in enumerate(self._tasks):
            progress(f"replacing {task.name}", number, len(self._tasks))
            others = [one.name for one in self._tasks if one is not task]
            self._wait(others, monotonic() + seconds, no_progress)
            _end([task.name])
            self._start(task, groups)
            self._wait([task.name], monotonic() + seconds, no_progress)
            sleep(_SETTLE_SECONDS)
        progress("replaced", len(self._tasks), len(self._tasks))
        return self.status()

    def down(self) -> int:
        """End all processes, fronts first, and free their resources; return how many ran."""
        names = [str(name) for name in ray.util.list_named_actors()]
        fronts = [name for name in names if name.startswith("front-")]
        _end(fronts)
        _end([name for name in names if name not in fronts])
        for group in self._groups().values():
            remove_placement_group(group)
        return len(names)

    def _groups(self) -> dict[str, PlacementGroup]:
        prefix = f"{self._cluster.name}: "
        names = {
            str(one["name"])
            for one in placement_group_table().values()
            if str(one["name"]).startswith(prefix) and one["state"] != "REMOVED"
        }
        return {name.removeprefix(prefix): get_placement_group(name) for name in names}

    def _place(self, *, make: bool = True) -> dict[str, PlacementGroup]:
        groups, rooms, fronts = self._groups(), unreserved_rooms(), self._cluster.fronts
        wanted = [
            Wanted(f"host {number}", host.replicas, host.memory, host.cpus, apart=True)
            for number, host in sorted(self._cluster.hosts.items())
        ]
        wanted.append(Wanted("front", fronts.count, fronts.memory, fronts.cpus, apart=False))
        new = []
        # The processes that fit in the fewest places come first.
        for processes in sorted(wanted, key=lambda processes: processes.memory, reverse=True):
            name, memory = processes.name, float(processes.memory)
            bundles = [{"CPU": processes.cpus, "memory": memory}] * processes.count
            if name in groups:
                if groups[name].bundle_specs != bundles:
                    raise InputError(
                        f"{name}: runs with other replicas, memory or CPUs than the file "
                        "says: end the cluster with `cluster down` before they change"
                    )
                continue
            if not make:
                raise InputError(f"{name}: does not run; `cluster up` starts it")
            groups[name] = placement_group(
                bundles,
                strategy="STRICT_SPREAD" if processes.apart else "SPREAD",
                name=f"{self._cluster.name}: {name}",
                lifetime="detached",
            )
            new.append(processes)
        # If resources are short, some may be freed right now.
        words = misfit(new, rooms)
        seconds = _PLACE_SECONDS if words is None else _PLACE_SECONDS / 4
        end = monotonic() + seconds
        late = [one for one in new if not groups[one.name].wait(max(0.1, end - monotonic()))]
        if late:
            for one in new:
                remove_placement_group(groups[one.name])
            raise CapacityError(
                words
                or f"{late[0].name}: Ray has placed it nowhere after {seconds:g} s; {free_in_all()}"
            )
        return groups

    def _start(self, task: Task, groups: Mapping[str, PlacementGroup]) -> None:
        if actor_of(task.name) is not None:
            return
        name = "front" if task.host is None else f"host {task.host}"
        cluster = self._cluster
        section = cluster.fronts if task.host is None else cluster.hosts[task.host]
        placed = PlacementGroupSchedulingStrategy(groups[name], task.replica)
        ray.remote(Supervisor).options(
            name=task.name,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=4,
            num_cpus=section.cpus,
            memory=section.memory,
            scheduling_strategy=placed,
        ).remote(task)

    def _wait(self, names: Sequence[str], end: float, progress: Progress) -> None:
        while True:
            states = states_of(names)
            ready = [name for name, state in states.items() if state.process.is_healthy]
            progress("processes ready", len(ready), len(names))
            if len(ready) == len(names):
                return
            processes = {name: state.process for name, state in states.items()}
            hopeless = any(
                process.restarts >= _MOST_STARTS and not process.was_ready
                for process in processes.values()
            )
            if hopeless or monotonic() > end:
                problems = dict.fromkeys(names, "Ray has not started it")
                for name, process in processes.items():
                    problems[name] = process.problem or "not ready yet"
                words = [f"{name}: {problems[name]}" for name in names if name not in ready]
                raise ShardedInferError(f"not ready: {'; '.join(words)}")
            sleep(_LOOK_SECONDS)


def _end(names: Sequence[str]) -> None:
    actors = {name: actor for name in names if (actor := actor_of(name)) is not None}
    stopping = [actor.stop.remote() for actor in actors.values()]
    # Processes that do not answer are ended all the same.
    with suppress(RayError, GetTimeoutError):
        ray.get(stopping, timeout=_END_SECONDS)
    for actor in actors.values():
        ray.kill(actor, no_restart=True)
    end = monotonic() + _END_SECONDS
    while any(actor_of(name) is not None for name in names) and monotonic() < end:
        sleep(_LOOK_SECONDS)


def _report(task: Task, state: TaskState | None, actor: ActorHandle | None) -> ProcessReport:
    if state is None:
        # A task that Ray moves does not answer.
        said = "missing" if actor is None else "lost"
        return ProcessReport(task.name, task.host, task.replica, said, *(None,) * 5, (), 0, "")
    process, ready = state.process, state.process.ready or {}
    return ProcessReport(
        name=task.name,
        host=task.host,
        replica=task.replica,
        state="ready" if process.is_healthy else "unhealthy" if ready else "starting",
        node=state.node,
        node_id=state.node_id,
        address=ready.get("grpc_url"),
        http_url=ready.get("metrics_url"),
        process_id=process.process_id,
        versions=process.versions,
        restarts=process.restarts + state.is_moved,
        problem=process.problem,
    )
