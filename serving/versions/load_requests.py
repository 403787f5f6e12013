"""Applies clients' load requests to the desired state."""

import logging
from collections.abc import Callable
from dataclasses import replace

from serving.versions.shared_state import SharedState
from serving.versions.state import DesiredState, LoadRequest, ModelState
from serving.versions.version_fetcher import reason_of
from sharded_infer.errors import NotFoundError, ShardedInferError

_log = logging.getLogger("sharded_infer")


class LoadRequests:
    """Reads each load request of the shared state once. Only the repository watcher calls."""

    def __init__(
        self,
        shared_state: SharedState,
        look: Callable[[ModelState], ModelState],
        adopt: Callable[[str], None],
    ) -> None:
        """Starts with all load requests unread; answered ones are skipped.

        `look` reads a model's published versions, and `adopt` reserves its metrics.
        """
        self._shared_state = shared_state
        self._look = look
        self._adopt = adopt
        self._seen = -1

    @property
    def has_news(self) -> bool:
        """True if there may be new load requests; cheap."""
        return self._shared_state.load_requests_sequence != self._seen

    def take(self, releases: DesiredState) -> DesiredState:
        """Applies new load requests in their order and returns the new state.

        A request for an unknown model changes nothing, and is answered. An error while reading a
        model becomes the model's trouble.
        """
        if not self.has_news:
            return releases
        seen = self._shared_state.load_requests_sequence
        load_requests = sorted(
            self._shared_state.load_requests().items(), key=lambda item: item[1].serial
        )
        for model, load_request in load_requests:
            if load_request.serial <= releases.answered:
                continue
            known = releases.models.get(model)
            try:
                found = self._taken(known, model, load_request)
            except NotFoundError:
                found = known
            except Exception as error:
                # A bug of ours, too, must not leave its client without an answer.
                if not isinstance(error, ShardedInferError | OSError):
                    _log.exception("internal error in a load request for model %r", model)
                before = known or ModelState(model, wanted=False)
                found = replace(before, load_request=load_request.serial, trouble=reason_of(error))
            models = releases.models if found is None else {**releases.models, model: found}
            releases = replace(releases, models=models, answered=load_request.serial)
        self._seen = seen
        return releases

    def _taken(
        self, known: ModelState | None, model: str, load_request: LoadRequest
    ) -> ModelState | None:
        if not load_request.wanted:
            return known and replace(
                known, wanted=False, load_request=load_request.serial, trouble=""
            )
        release = known or ModelState(model, wanted=False)
        # Before it takes room that others may need.
        if not self._look(release).published:
            raise NotFoundError(f"no model {model!r}")
        self._adopt(model)
        return self._look(
            replace(release, wanted=True, load_request=load_request.serial, trouble="", failures=())
        )


def settled(releases: DesiredState, loading: set[str]) -> DesiredState:
    """Marks load requests as done, except for models that are still `loading`."""
    models = {
        model: replace(release, done=release.load_request)
        if model not in loading
        and all(assigned_version.ready for assigned_version in release.assigned)
        else release
        for model, release in releases.models.items()
    }
    return replace(releases, models=models)
