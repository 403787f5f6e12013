"""Parts of a publish as tasks of Ray, spread over machines, and repeated if one is lost."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayError, RayTaskError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from serving.cluster.capacity import Wanted, misfit
from serving.cluster.ray_connection import connect, free_in_all, whole_rooms
from sharded_infer.errors import CapacityError, ShardedInferError
from sharded_infer.progress import ENCODING, Progress

if TYPE_CHECKING:
    # Its import takes seconds, before which a task could not report its machine.
    from sharded_infer.publishing.part_publication import PublishedPart

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 0.5
_SAY_SECONDS = 0.2
# Time for a part that should end to remove its files.
_END_SECONDS = 10.0
# After this time the command prints why nothing starts.
_ROOM_SECONDS = 20.0

# Makes a part of this number; runs on any machine, perhaps repeatedly.
MakePart = Callable[[int, Progress], "PublishedPart"]


@dataclass(frozen=True, slots=True)
class PartStatus:
    """A started part: its last machine, and fp32 bytes of rows encoded since the last start."""

    node: str
    done: int


class PartStatusActor:
    """Progress of parts, shared by all machines: parts write, the command reads."""

    def __init__(self) -> None:
        self._statuses: dict[int, PartStatus] = {}

    def begin(self, part: int, node: str) -> None:
        """Record a first or repeated start of a part."""
        self._statuses[part] = PartStatus(node, 0)

    def say(self, part: int, done: int) -> None:
        """Record the progress of a part."""
        self._statuses[part] = replace(self._statuses[part], done=done)

    def read(self) -> Mapping[int, PartStatus]:
        """Status of each started part."""
        return dict(self._statuses)


class RayParts:
    """Ray, for one publish."""

    def __init__(self, address: str, *, cpus: float, memory: int, retries: int) -> None:
        """Connect to Ray; InputError without an answer, CapacityError without a large machine."""
        connect(address, "--ray-address")
        self._cpus, self._memory, self._retries = cpus, memory, retries
        if words := misfit([Wanted("part", 1, memory, cpus, apart=False)], whole_rooms()):
            ray.shutdown()
            raise CapacityError(words)

    def close(self) -> None:
        """Disconnect from Ray, which ends running tasks."""
        ray.shutdown()

    def run(
        self, make: MakePart, parts: int, fp32_bytes: int, progress: Progress
    ) -> "list[tuple[PublishedPart, str, int]]":
        """Make all parts, and return them in order, with their machines and numbers of starts.

        `make` is sent by name: machines must have its module. Raises ShardedInferError, naming part
        and node, if a part failed, or was lost too often; the others are ended.
        """
        # This task is lost only together with this process.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        board = ray.remote(PartStatusActor).options(num_cpus=0, scheduling_strategy=here).remote()
        task = ray.remote(publish_part_task).options(
            num_cpus=self._cpus,
            memory=self._memory,
            # Ray's public interface does not say which retry runs: this process counts.
            max_retries=0,
            scheduling_strategy="SPREAD",
        )
        starts = dict.fromkeys(range(1, parts + 1), 1)
        waiting = {task.remote(make, part, board): part for part in starts}
        made: dict[int, PublishedPart] = {}
        late = monotonic() + _ROOM_SECONDS
        try:
            while True:
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=_LOOK_SECONDS)
                statuses: Mapping[int, PartStatus] = ray.get(board.read.remote())
                for ended in done:
                    part = waiting.pop(ended)
                    where, status = f"part {part}/{parts}", statuses.get(part)
                    where += "" if status is None else f" on node {status.node}"
                    outcome = self._outcome(ended, where, starts[part])
                    if outcome is None:
                        starts[part] += 1
                        waiting[task.remote(make, part, board)] = part
                    else:
                        made[part] = outcome
                encoded = sum(stored.fp32_bytes for stored in made.values())
                encoded += sum(status.done for part, status in statuses.items() if part not in made)
                progress(f"{ENCODING} {parts} parts", encoded, fp32_bytes)
                if not waiting:
                    break
                if not statuses and monotonic() > late:
                    _log.warning("no part has begun yet: %s", free_in_all())
                    late = float("inf")
        finally:
            _end(list(waiting))
        return [(made[part], statuses[part].node, starts[part]) for part in sorted(made)]

    def _outcome(self, task: Any, where: str, starts: int) -> "PublishedPart | None":
        """The part; None if its process was lost and may be restarted."""
        try:
            outcome = ray.get(task)
        except RayTaskError:
            # A bug of ours, with its traceback.
            raise
        except RayError as error:
            if starts <= self._retries:
                return None
            why = str(error).partition("\n")[0]
            raise ShardedInferError(
                f"{where}: its process was lost, and {self._retries} retries did not help: {why}"
            ) from error
        if isinstance(outcome, ShardedInferError):
            raise ShardedInferError(f"{where}: {outcome}")
        stored: PublishedPart = outcome
        return stored


def publish_part_task(
    make: MakePart, part: int, board: ActorHandle
) -> "PublishedPart | ShardedInferError":
    """Make a part on the machine where Ray runs this; return expected errors."""
    node_id = ray.get_runtime_context().get_node_id()
    ray.get(board.begin.remote(part, f"{get_node_ip_address()} ({node_id[:8]})"))
    said = 0.0

    def say(what: str, done: int, _total: int) -> None:
        nonlocal said
        if what == ENCODING and monotonic() - said > _SAY_SECONDS:
            board.say.remote(part, done)
            said = monotonic()

    try:
        return make(part, say)
    except (ShardedInferError, OSError) as error:
        return ShardedInferError(str(error))


def _end(tasks: list[Any]) -> None:
    for force in (False, True):
        for task in tasks:
            ray.cancel(task, force=force)
        if not tasks:
            return
        _, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=_END_SECONDS)
