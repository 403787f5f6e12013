"""How a server follows its repository."""

from dataclasses import dataclass

from serving.version_policy import VersionPolicy
from sharded_infer.table_memory import TableMemory


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """What is followed, and how.

    Attributes:
        policy: which versions.
        poll_seconds: between looks; 0: only when asked.
        spare_bytes: memory that must stay free beside what is loaded.
        workers: processes that load.
        memory: where tables lie; None: as each model's spec says.
        explicit: clients say which models are served.
    """

    policy: VersionPolicy
    poll_seconds: float
    spare_bytes: int
    workers: int
    memory: TableMemory | None
    explicit: bool = False
