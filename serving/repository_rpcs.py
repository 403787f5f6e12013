"""The protocol's RPCs about the repository: what there is, and what is loaded."""

from collections.abc import Callable
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from serving.model_control import ModelControl
from serving.model_store import ModelStore
from serving.status import status_of
from sharded_infer.errors import NotFoundError, RequestError

_NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


class RepositoryRpcs:
    """Which versions of a model are served is the server's policy; clients may say which models."""

    def __init__(
        self, store: ModelStore, look: Callable[[], None], control: ModelControl | None
    ) -> None:
        """Keeps what the RPCs need.

        Args:
            store: the loaded versions.
            look: makes the server look at its repository at once.
            control: loads and unloads; None: the server follows its repository by itself.
        """
        self._store = store
        self._look = look
        self._control = control

    def RepositoryIndex(self, request: Any, context: grpc.ServicerContext) -> Any:
        """All versions that are known, and why those that are not ready are not."""
        index = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(
            models=[
                index(
                    name=entry.model,
                    version=str(entry.version) if entry.version else "",
                    state=entry.state,
                    reason=entry.reason,
                )
                for entry in self._store.index()
                if entry.state == "READY" or not request.ready
            ]
        )

    def RepositoryModelLoad(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Loads a model; where the server follows its repository, has it look there at once.

        The answer to the first comes when every worker has the model. That to the second comes
        before anything is loaded: `RepositoryIndex` says what becomes of it.
        """
        try:
            if self._control is None:
                if request.model_name not in {entry.model for entry in self._store.index()}:
                    raise NotFoundError(f"no model {request.model_name!r} is served here")
                _check(request.parameters, ())
                self._look()
            else:
                _check(request.parameters, ())
                self._control.load(request.model_name, context.is_active)
        except Exception as error:
            context.abort(*status_of(error))
        return service_pb2.RepositoryModelLoadResponse()

    def RepositoryModelUnload(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Lets a model go: no more requests are taken for it, and those in flight are answered."""
        if self._control is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, _NOT_ALLOWED)
            raise RuntimeError  # abort does not return
        try:
            # Models have no dependents here, so there is nothing to do for it.
            _check(request.parameters, ("unload_dependents",))
            self._control.unload(request.model_name, context.is_active)
        except Exception as error:
            context.abort(*status_of(error))
        return service_pb2.RepositoryModelUnloadResponse()


def _check(parameters: Any, known: tuple[str, ...]) -> None:
    others = sorted(set(parameters) - set(known))
    if others:
        raise RequestError(
            f"parameters: expected {', '.join(known) or 'none'}, got {', '.join(others)}: what is "
            "loaded is what was published, by the server's policy"
        )
