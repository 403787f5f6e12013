"""Loads and unloads models for clients, by requests in the shared state."""

import threading
from collections.abc import Callable
from dataclasses import replace
from time import sleep

from serving.config.version_policy import DEFAULT_NAME, VersionPolicy
from serving.errors import CancelledError, LimitError, UnavailableError
from serving.versions.decision import decide
from serving.versions.shared_state import SharedState
from serving.versions.state import DesiredState, ModelState
from sharded_infer.errors import NotFoundError

_POLL_SECONDS = 0.02
# Each waiting client occupies a thread of the transport.
_MOST_WAITING = 6
# Linux file systems limit a folder name to 255 bytes.
_MOST_NAME_BYTES = 255


class ModelControl:
    """Loads and unloads models for the clients of one process. Thread-safe."""

    def __init__(self, shared_state: SharedState, policy: VersionPolicy) -> None:
        self._shared_state = shared_state
        self._policy = policy
        self._room = threading.Semaphore(_MOST_WAITING)

    def load(self, model: str, is_active: Callable[[], bool]) -> None:
        """Loads a model, and returns when every worker serves it.

        Versions that failed are tried again. A model that is already served is checked again.

        Raises:
            NotFoundError: the repository has no such model.
            UnavailableError: a version that the policy selects failed; names the step and reason.
            LimitError: too many clients are waiting.
            CancelledError: the client has disconnected (`is_active` is False).
        """
        release = self._settled(model, True, is_active)
        known_versions = release.known_versions()
        wanted = decide(self._policy, replace(known_versions, failed=frozenset())).load
        wanted = (*wanted, *known_versions.assigned)
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
        """Unloads a model, and returns when no worker accepts requests for it.

        Raises:
            NotFoundError: there is no such model.
            LimitError: too many clients are waiting.
            CancelledError: the client has disconnected.
        """
        self._settled(model, False, is_active)

    def _settled(self, model: str, wanted: bool, is_active: Callable[[], bool]) -> ModelState:
        if not (model.isprintable() and 0 < len(model.encode()) <= _MOST_NAME_BYTES):
            raise NotFoundError(f"no model {model[:_MOST_NAME_BYTES]!r} in the repository")
        if not self._room.acquire(blocking=False):
            raise LimitError(f"{_MOST_WAITING} models are being loaded or unloaded, no more")
        try:
            serial = self._shared_state.load_request(model, wanted=wanted)
            sequence, releases = self._await(lambda r: _is_settled(r, model, serial), is_active)
            release = releases.models.get(model)
            if release is None or release.load_request < serial:
                raise NotFoundError(f"no model {model!r} in the repository")
            # Each worker applies the state on its own, so wait until all have seen this sequence.
            while not all(report.seen >= sequence for report in self._shared_state.reports()):
                _pause(is_active)
            return release
        finally:
            self._room.release()

    def _await(
        self, is_met: Callable[[DesiredState], bool], is_active: Callable[[], bool]
    ) -> tuple[int, DesiredState]:
        seen = -1
        while True:
            if self._shared_state.sequence != seen:
                seen, releases = self._shared_state.releases()
                if is_met(releases):
                    return seen, releases
            _pause(is_active)


def _is_settled(releases: DesiredState, model: str, serial: int) -> bool:
    if releases.answered < serial:
        return False
    release = releases.models.get(model)
    return release is None or release.load_request < serial or release.done >= serial


def _pause(is_active: Callable[[], bool]) -> None:
    if not is_active():
        raise CancelledError("the client gave the request up")
    sleep(_POLL_SECONDS)
