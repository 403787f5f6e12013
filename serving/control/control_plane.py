"""All client requests except predict calls, in plain values for gRPC and HTTP."""

import importlib.metadata
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from time import monotonic, sleep
from typing import Final, NoReturn

from serving.control.model_control import ModelControl
from serving.control.model_description import (
    ModelDescription,
    ServerDescription,
    VersionTotals,
    describe_model,
)
from serving.control.prepare_messages import user_message
from serving.control.server_settings import (
    TRACE_SETTINGS,
    Setting,
    changed_levels,
    check_trace_changes,
    log_settings,
)
from serving.errors import DeadlineError, NotOfferedError, UnavailableError
from serving.observability.log_levels import LogControl
from serving.protocol.message_format import MessageFormat
from serving.shared_memory.regions import Region, SharedMemory
from serving.versions.served_versions import IndexEntry, ServedVersions
from sharded_infer.errors import NotFoundError, RequestError
from sharded_infer.v1.predictor_pb2 import PredictRequest, PrepareResponse

_EXTENSIONS = ("statistics", "model_configuration", "model_repository", "logging")
# Between two looks at the queue of predict calls.
_PREPARE_WAIT_SECONDS: Final = 0.0005
_NOT_ALLOWED = "explicit model load / unload is not allowed if polling is enabled"


class ControlPlane:
    """Answers from the loaded versions, and raises `ShardedInferError`. Thread-safe."""

    def __init__(
        self,
        store: ServedVersions,
        is_ready: Callable[[], bool],
        logs: LogControl,
        *,
        models: ModelControl | None = None,
        look: Callable[[], None] = lambda: None,
        memory: SharedMemory | None = None,
        max_batch: int,
    ) -> None:
        """Stores the parts of the server that it queries.

        Args:
            is_ready: True if every model is loaded and the server is not draining.
            logs: the log levels of all processes.
            models: loads and unloads models; None if the server polls its repository.
            look: makes the server poll its repository at once.
            memory: clients' regions; None if shared memory is not offered.
            max_batch: the most samples in a request.
        """
        self._store = store
        self._is_ready = is_ready
        self._logs = logs
        self._models = models
        self._look = look
        self._memory = memory
        shared = () if memory is None else ("system_shared_memory",)
        self._extensions = (*_EXTENSIONS, *shared)
        self._max_batch = max_batch

    def server(self) -> ServerDescription:
        """The server's name, version and protocol extensions."""
        version = importlib.metadata.version("sharded-infer")
        return ServerDescription("sharded-infer", version, self._extensions)

    def is_ready(self) -> bool:
        """True if every model is loaded and the server is not draining."""
        return self._is_ready()

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """True if a version (a number or a label; empty: the default) is ready.

        Raises NotFoundError if there is none.
        """
        try:
            self._store.get(name, version)
        except UnavailableError:
            return False
        return True

    def model(self, name: str, version: str = "") -> ModelDescription:
        """Inputs, outputs and limits of a version (a number or a label; empty: the default).

        Raises:
            NotFoundError: there is no such model or version.
            UnavailableError: it is still loading, or its load failed.
        """
        model = self._store.get(name, version).model
        versions = tuple(self._store.versions(model.name))
        return describe_model(model, versions, self._store.names(model.name), self._max_batch)

    def prepare(self, request: PredictRequest, deadline: float) -> PrepareResponse:
        """Computes and keeps the state of a request's user, while no predict call waits.

        Args:
            request: of which the model, the version and the user's inputs are read.
            deadline: of the monotonic clock.

        Raises:
            NotFoundError, UnavailableError: as `model`.
            NotOfferedError: the server keeps no states of this model.
            RequestError: an input does not fit the model.
            DeadlineError: predict calls waited until the deadline.
        """
        loaded_version = self._store.get(request.model, request.version)
        model = loaded_version.model
        if model.users is None:
            raise NotOfferedError(
                f"model {model.name!r}: no states of users are kept, expected tower.user_inputs in "
                "its spec and serve --user-cache-mib"
            )
        batch = loaded_version.reader.read_message(
            user_message(request, model.spec), form=MessageFormat.PREDICT
        )
        while loaded_version.queue.oldest_arrival() < inf:
            if monotonic() > deadline:
                raise DeadlineError("predict calls waited until the deadline")
            sleep(_PREPARE_WAIT_SECONDS)
        known, computed = model.prepare(batch, deadline)
        return PrepareResponse(
            model=model.name,
            version=model.version,
            known_positions=known,
            computed_positions=computed,
        )

    def statistics(self, name: str = "", version: str = "") -> list[VersionTotals]:
        """Totals of one version, as in `model`, or, if `name` is empty, of all loaded versions."""
        found = [self._store.get(name, version)] if name else self._store.loaded_versions()
        return [VersionTotals(s.model.name, s.model.version, s.metrics.totals()) for s in found]

    def index(self, *, ready_only: bool = False) -> list[IndexEntry]:
        """All known versions, and why some are not ready."""
        entries = self._store.index()
        return [entry for entry in entries if entry.state == "READY" or not ready_only]

    def load(self, model: str, parameters: Collection[str], is_active: Callable[[], bool]) -> None:
        """Loads a model, and returns when every worker serves it.

        A server that polls its repository only polls it at once; the index then shows the result.

        Args:
            parameters: names of the request's parameters; none is offered.
            is_active: True while the client waits.

        Raises:
            NotFoundError: there is no such model.
            RequestError: a parameter is not offered.
            UnavailableError, LimitError, CancelledError: as `ModelControl.load`.
        """
        if self._models is None and model not in {entry.model for entry in self._store.index()}:
            raise NotFoundError(f"no model {model!r} is served here")
        _check_parameters(parameters, ())
        if self._models is None:
            self._look()
        else:
            self._models.load(model, is_active)

    def unload(
        self, model: str, parameters: Collection[str], is_active: Callable[[], bool]
    ) -> None:
        """Unloads a model: it accepts no more requests, and those in progress are answered.

        The parameter `unload_dependents` has no effect, because models have no dependents here.

        Raises:
            NotFoundError: there is no such model.
            RequestError: another parameter is given.
            UnavailableError: the server polls its repository.
            LimitError, CancelledError: as `ModelControl.unload`.
        """
        if self._models is None:
            raise UnavailableError(_NOT_ALLOWED)
        _check_parameters(parameters, ("unload_dependents",))
        self._models.unload(model, is_active)

    def register_region(self, name: str, key: str, *, offset: int, byte_size: int) -> None:
        """Calls `SharedMemory.register`; raises NotOfferedError without shared memory."""
        self._offered().register(name, key, offset=offset, byte_size=byte_size)

    def unregister_region(self, name: str = "") -> None:
        """Unregisters a region, or all if the name is empty.

        An unknown region is no error, because clients start with this call.
        """
        if self._memory is not None:
            self._memory.unregister(name)

    def regions(self, name: str = "") -> list[Region]:
        """The named region, or, if the name is empty, all regions sorted by name.

        Raises:
            NotFoundError: no region has this name.
            NotOfferedError: a name is given, and shared memory is not offered.
        """
        if name:
            return [self._offered().find(name)]
        registered = {} if self._memory is None else self._memory.regions()
        return [registered[known] for known in sorted(registered)]

    def register_cuda_region(self) -> NoReturn:
        """Raises NotOfferedError, because this server reads inputs on CPUs."""
        raise NotOfferedError("CUDA shared memory is not offered: this server runs on CPUs")

    def check_cuda_region(self, name: str) -> None:
        """Raises NotFoundError for any name but the empty one: no CUDA region is registered."""
        if name:
            raise NotFoundError(f"no CUDA shared memory region {name!r} is registered")

    def change_logs(self, changes: Mapping[str, Setting | None]) -> Mapping[str, Setting]:
        """Changes the log settings of all processes as `changed_levels`; returns all settings."""
        if changes:
            self._logs.change(lambda levels: changed_levels(levels, changes))
        return log_settings(self._logs.levels)

    def change_traces(
        self, changes: Mapping[str, Sequence[str]], model: str = ""
    ) -> Mapping[str, str]:
        """The protocol's trace settings: no traces are written, and no change is offered.

        Raises as `check_trace_changes`, and NotFoundError or UnavailableError for a model (empty:
        all) that is not served.
        """
        if model:
            self._store.get(model)
        check_trace_changes(changes)
        return TRACE_SETTINGS

    def _offered(self) -> SharedMemory:
        if self._memory is None:
            raise NotOfferedError("shared memory is not offered here (--shared-memory)")
        return self._memory


def _check_parameters(parameters: Collection[str], known: tuple[str, ...]) -> None:
    others = sorted(set(parameters) - set(known))
    if others:
        raise RequestError(
            f"parameters: expected {', '.join(known) or 'none'}, got {', '.join(others)}: what is "
            "loaded is what was published, by the server's policy"
        )
