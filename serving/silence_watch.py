"""The first process looks at the others' signs of life: who is silent, and who is killed."""

import logging
import signal
from time import monotonic

from serving.child_processes import POLL_SECONDS, ChildProcesses, child_name
from serving.heartbeat import Silence
from serving.server_state import ServerState

_log = logging.getLogger("sharded_infer")
# One look may add so many polls' time: more of it this process has not run itself.
_MOST_POLLS = 4
# Of the limit, after which a server with a silent worker is not ready.
_SILENT_SHARE = 0.5
# At the end, when nobody comes to harm by it.
_END_SECONDS = 5.0


class SilenceWatch:
    """Kills what gives no sign of life; whoever reaps it starts it again."""

    def __init__(self, children: ChildProcesses, state: ServerState, limit_seconds: float) -> None:
        """Begins with everybody alive.

        Args:
            children: the processes.
            state: the server's.
            limit_seconds: of silence; 0: none.
        """
        self._children = children
        self._state = state
        self._limit = limit_seconds
        self._silence = Silence(_MOST_POLLS * POLL_SECONDS)

    def end_silent(self) -> None:
        """Says which workers are silent, and kills those that have been for too long."""
        if not self._limit:
            return
        for number, seconds in self._look().items():
            if number >= 0:
                self._state.set_silent(number, seconds >= _SILENT_SHARE * self._limit)
            if seconds >= self._limit:
                _log.error(
                    "%s gave no sign of life for %.3g s: it is killed", child_name(number), seconds
                )
                self._children.signal(number, signal.SIGKILL)
                self._silence.forget(number)

    def hopeless(self) -> list[int]:
        """Those that were asked to end, and have been silent for a while since."""
        if not self._limit:
            return []
        limit = min(self._limit, _END_SECONDS)
        return [number for number, seconds in self._look().items() if seconds >= limit]

    def _look(self) -> dict[int, float]:
        counts = {n: self._state.heartbeats.count(n) for n in self._children.numbers}
        return dict(self._silence.look(counts, monotonic()))
