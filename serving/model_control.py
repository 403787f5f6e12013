"""Models that clients load and unload: the wish goes on the board, and its end is waited for."""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import sleep

from serving.board import Board
from serving.refusals import CancelledError, LimitError, UnavailableError
from serving.releases import ModelReleases, Releases
from serving.version_policy import DEFAULT_NAME, VersionPolicy, decide
from sharded_infer.errors import NotFoundError

_POLL_SECONDS = 0.02
# Each holds a thread of the transport while it waits.
_MOST_WAITING = 6
# No folder has a longer name.
_MOST_NAME_BYTES = 255


class ModelControl:
    """What one process does for clients that load and unload. Any thread may call."""

    def __init__(self, board: Board, policy: VersionPolicy) -> None:
        """Begins with nobody waiting.

        Args:
            board: the server's.
            policy: which versions of a model are served.
        """
        self._board = board
        self._policy = policy
        self._room = threading.Semaphore(_MOST_WAITING)

    def load(self, model: str, is_active: Callable[[], bool]) -> None:
        """Has a model served, and returns when every worker answers for it.

        What had failed is tried again; a model that is served already is looked at once more.

        Args:
            model: its name.
            is_active: whether the client still waits.

        Raises:
            NotFoundError: the repository has no such model.
            UnavailableError: a version that the policy wants has failed; says the step and why.
            LimitError: too many clients wait.
            CancelledError: the client has gone.
        """
        release = self._settled(model, True, is_active)
        situation = release.situation()
        wanted = decide(self._policy, replace(situation, failed=frozenset())).load
        wanted = (*wanted, *situation.held)
        reasons = [
            f"version {failure.version} failed at {failure.phase}: {failure.reason}"
            for failure in release.failures
            if failure.version in wanted
        ]
        if release.trouble:
            reasons.append(release.trouble)
        if not reasons and DEFAULT_NAME not in release.names:
            reasons.append(f"{self._policy} names no version of it")
        if reasons:
            raise UnavailableError(f"failed to load {model!r}: {'; '.join(reasons)}")

    def unload(self, model: str, is_active: Callable[[], bool]) -> None:
        """Has a model let go, and returns when no worker takes requests for it.

        Args:
            model: its name.
            is_active: whether the client still waits.

        Raises:
            NotFoundError: there is no such model.
            LimitError: too many clients wait.
            CancelledError: the client has gone.
        """
        self._settled(model, False, is_active)

    def _settled(self, model: str, wanted: bool, is_active: Callable[[], bool]) -> ModelReleases:
        if not (model.isprintable() and 0 < len(model.encode()) <= _MOST_NAME_BYTES):
            raise NotFoundError(f"no model {model[:_MOST_NAME_BYTES]!r} in the repository")
        if not self._room.acquire(blocking=False):
            raise LimitError(f"{_MOST_WAITING} models are being loaded or unloaded, no more")
        try:
            serial = self._board.wish(model, wanted=wanted)
            sequence, releases = self._await(lambda r: _is_settled(r, model, serial), is_active)
            release = releases.models.get(model)
            if release is None or release.wish < serial:
                raise NotFoundError(f"no model {model!r} in the repository")
            # Names hold from a moment on, which every worker sees by itself.
            while not all(report.seen >= sequence for report in self._board.reports()):
                _pause(is_active)
            return release
        finally:
            self._room.release()

    def _await(
        self, is_met: Callable[[Releases], bool], is_active: Callable[[], bool]
    ) -> tuple[int, Releases]:
        seen = -1
        while True:
            if self._board.sequence != seen:
                seen, releases = self._board.releases()
                if is_met(releases):
                    return seen, releases
            _pause(is_active)


def _is_settled(releases: Releases, model: str, serial: int) -> bool:
    if releases.answered < serial:
        return False
    release = releases.models.get(model)
    return release is None or release.wish < serial or release.done >= serial


def _pause(is_active: Callable[[], bool]) -> None:
    if not is_active():
        raise CancelledError("the client gave the request up")
    sleep(_POLL_SECONDS)
