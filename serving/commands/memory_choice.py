"""The words for where tables lie."""

from enum import StrEnum


class MemoryChoice(StrEnum):
    """Where tables lie; see `sharded_infer.table_memory`."""

    MAP = "map"
    HUGE = "huge"
