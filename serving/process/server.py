"""Assembles a server, starts it and ends it."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kernels.sequences.user_states import UserStates
from serving.config.server_config import ALL_MODELS, MIB, ServerConfig
from serving.control.server_state import ServerState
from serving.dashboard.dashboard import Dashboard
from serving.grpc_api.compiled.native_transport import check_transport
from serving.host.background import lower_priority
from serving.host.cores import slots_of
from serving.host.descriptors import allow_most_descriptors
from serving.host.malloc import give_back_freed_memory, keep_freed_memory
from serving.host.memory import available_bytes
from serving.host.signal_flag import SignalFlag
from serving.host.table_copies import shared_copies
from serving.host.unix_socket import SCHEME
from serving.http_api.http_server import HttpServer, http_limits, listen
from serving.metrics.families.family import Detail
from serving.metrics.server_metrics import ServerMetrics
from serving.observability.log_levels import LogControl
from serving.process.child_processes import leave
from serving.process.ready import Ready, ServedModel
from serving.process.supervisor import supervise
from serving.process.unix_sockets import UnixSockets, open_sockets
from serving.process.worker import Worker
from serving.protocol.input_limits import InputLimits
from serving.remote_lookups.fronts import Fronts
from serving.scheduler.batching import BatchingMode
from serving.security.exposure import check_protection
from serving.security.tls import tls_files
from serving.shared_memory.regions import SharedMemory
from serving.versions.loaded_version import LoadedVersion, ServingOverrides
from serving.versions.repository_watcher import WatchSettings
from serving.versions.served_versions import ServedVersions
from serving.versions.shared_state import SharedState
from serving.versions.version_installer import VersionInstaller
from serving.versions.version_manager import VersionManager
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.errors import CapacityError, NotFoundError
from sharded_infer.lookups.share_lookups import MAX_ANSWER_BYTES
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository
from sharded_infer.towers.host_products import ProductsOption

_log = logging.getLogger("sharded_infer")
# Slots in the metrics for unloaded versions: their counts remain available to scrapes for a while.
_SPARE_SLOTS = 2
# Models that clients may add to a server with explicit loading.
_SPARE_MODELS = 64
# Time for a thread to end when the server does.
_STOP_SECONDS = 1.0


Bars = Callable[[], AbstractContextManager[Progress]]


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[Ready], None],
    progress: Bars = lambda: nullcontext(no_progress),
) -> None:
    """Load the models and serve them until SIGTERM or SIGINT; then drain and return.

    Args:
        on_ready: called once, when the models are loaded and every worker answers.
        progress: entered while models load; receives the progress of loading.

    Raises:
        InputError: a port is not available, the transport lacks a configured feature, a public
            address has no TLS, tokens or `insecure`, or certificates or tokens cannot be read.
        NotFoundError: the repository has none of the models.
        ArtifactError: its only model's version is damaged; with `strict`, any model's version.
        GateError: the scores of that version's golden requests differ too much.
        UnservedError: none of its models can be served.
    """
    check_transport()
    check_protection(config)
    allow_most_descriptors()
    # For these towers OpenMP's barriers cost more than they gain; requests run in parallel instead.
    torch.set_num_threads(1)
    # oneDNN keeps kernels by layer and batch size (sharded_infer/towers/batch_sizes.py). A large
    # tower has more than its default of 1,024. oneDNN reads this variable at its first kernel.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    if not keep_freed_memory(config.slots or slots_of(config.workers)):
        _log.warning(
            "this C library cannot keep freed memory mapped: requests may cause page faults"
        )
    repository = Repository(config.repository, trusted_keys=config.trusted_key)
    models = _first_models(config, repository)
    known = list(dict.fromkeys((*(repository.models() if config.explicit else ()), *models)))
    slots = config.follow.most_held + _SPARE_SLOTS
    spare = _SPARE_MODELS if config.explicit else 0
    metrics = ServerMetrics(
        config.workers,
        most_versions=slots * (len(known) + spare),
        detail=Detail[config.metrics.upper()],
        shadows=config.shadow is not None,
    )
    for name in known:
        metrics.follow(name, slots=slots, labels=config.follow.labels)
    metrics.spare(spare, slots=slots, labels=config.follow.labels)
    shared = (
        SharedMemory(most_bytes=config.max_message_bytes) if config.offers_shared_memory else None
    )
    state = ServerState(config.workers)
    logs = LogControl()
    logs.attach(_log)
    memory, products = _table_memory(config), ProductsOption(config.precision)
    copies = shared_copies(config.workers)
    fronts = None
    if config.shard_hosts is not None:
        fronts = Fronts(Path(config.shard_hosts), answer_bytes=MAX_ANSWER_BYTES + MIB)
    store = ServedVersions(
        repository,
        metrics,
        topology=config.topology,
        max_batch=config.max_batch,
        overrides=ServingOverrides(
            None if config.executor is None else BatchingMode(config.executor),
            config.max_delay_us,
            memory,
            config.devices,
            config.slots > 0,
            InputLimits(config.max_ids, config.max_inputs),
            copies,
            config.workers,
            None if fronts is None else fronts.front_of,
            _user_states(config),
            config.row_memory_bytes,
            products,
            config.warm_from,
        ),
    )
    store.announce(models)
    settings = WatchSettings(
        config.follow,
        config.poll_seconds,
        config.spare_bytes,
        config.workers,
        memory,
        explicit=config.explicit,
        shares_copies=copies is not None,
        row_memory_bytes=config.row_memory_bytes,
        products=products,
        fetch_front=None if fronts is None else partial(fronts.fetch, topology=config.topology),
    )
    manager = VersionManager(repository, SharedState(config.workers), metrics, settings)
    served: list[ServedModel] = []
    unserved: dict[str, str] = {}

    def load() -> VersionInstaller:
        with progress() as told:
            installer = manager.load_first(store, models, told, strict=config.strict)
        give_back_freed_memory()
        served.extend(map(_served, store.defaults()))
        unserved.update(manager.missing())
        for name, reason in unserved.items():
            fields = {"model": name, "reason": reason}
            _log.error("the server starts without a model", extra=fields)
        return installer

    def ready(port: int, http_port: int) -> None:
        on_ready(_ready(config, port, http_port, served, unserved))

    def make_worker(number: int) -> Worker:
        shared_state = manager.shared_state
        if fronts is not None:
            fronts.watch(metrics)
        return Worker(
            config,
            store,
            metrics,
            state,
            shared_state,
            number,
            logs=logs,
            memory=shared,
            sockets=sockets,
        )

    serve_with = supervise if config.workers > 1 else _serve_alone
    with open_sockets(config) as sockets:
        serve_with(
            config,
            store,
            metrics,
            state,
            manager=manager,
            sockets=sockets,
            make_worker=make_worker,
            load=load,
            on_ready=ready,
            hosts=list if fronts is None else fronts.described,
        )


def _first_models(config: ServerConfig, repository: Repository) -> list[str]:
    named = config.load_models if config.explicit else config.models
    if named and ALL_MODELS not in named:
        return list(dict.fromkeys(named))
    known = repository.models()
    if config.explicit:
        return known if named else []
    if not known:
        raise NotFoundError(f"{config.repository}: holds no published model")
    return known


def _serve_alone(
    config: ServerConfig,
    store: ServedVersions,
    metrics: ServerMetrics,
    state: ServerState,
    *,
    manager: VersionManager,
    sockets: UnixSockets,
    make_worker: Callable[[int], Worker],
    load: Callable[[], VersionInstaller],
    on_ready: Callable[[int, int], None],
    hosts: Callable[[], list[dict[str, Any]]],
) -> None:
    stop, asked = SignalFlag(), SignalFlag()

    def look(*_: object) -> None:
        state.ask_reload()
        asked.set()

    signal.signal(signal.SIGHUP, look)

    def end(*_: object) -> None:
        state.drain()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    worker = make_worker(0)
    listeners = [*listen(config.host, config.http_port), *sockets.http_listeners()]
    shared_state = manager.shared_state
    dashboard = Dashboard(
        metrics.registry, state, shared_state, topology=config.topology, hosts=hosts
    )
    http_server = HttpServer(
        listeners,
        metrics,
        state,
        dashboard,
        api=worker.rest,
        limits=http_limits(config),
        guard=worker.guard,
        admin_elsewhere=config.admin_address is not None,
        tls=tls_files(config),
        missing=manager.missing,
        is_live=worker.goes_on,
    )
    with closing(http_server):
        # Listens while models load, so that clients learn to wait.
        port = worker.listen(config.port)
        try:
            installer = load()
            worker.warm_up()
        except BaseException:
            # Closing starts a thread. If that fails for lack of memory, the first error is raised.
            with suppress(RuntimeError):
                worker.close()
            raise
        installer.start()
        thread = threading.Thread(
            target=_follow, args=(manager, stop, asked), name="watcher", daemon=True
        )
        thread.start()
        try:
            worker.serve(
                stop,
                on_ready=lambda: on_ready(port, http_server.server_port),
                grace_seconds=config.grace_seconds,
            )
        finally:
            stop.set()
            asked.set()
            installer.stop()
            thread.join(_STOP_SECONDS)
    if worker.runs_still:
        _log.error("a batch hangs: the process ends without it")
    if worker.runs_still or any(one.daemon for one in threading.enumerate()):
        sockets.close()
        # Python would wait for the batch's thread. It would end the others at any point; a thread
        # in torch's code then would abort the process.
        leave(0)


def _follow(manager: VersionManager, stop: SignalFlag, asked: SignalFlag) -> None:
    lower_priority()
    manager.watcher().run(stop, asked)


def _served(loaded_version: LoadedVersion) -> ServedModel:
    model = loaded_version.model
    return ServedModel(
        name=model.name,
        version=model.version,
        topology=model.plan.topology.name,
        table_bytes=model.table_bytes,
        memory=model.memory.value,
        kernels=dict(model.engine.backends),
        products=None if model.products is None else model.products.text,
        executor=loaded_version.queue.policy.mode.value,
    )


def _ready(
    config: ServerConfig,
    port: int,
    http_port: int,
    served: list[ServedModel],
    missing: dict[str, str],
) -> Ready:
    scheme = "http" if config.tls_certificate is None else "https"
    # An IPv6 address stands in brackets before a port.
    host = f"[{config.host}]" if ":" in config.host else config.host
    return Ready(
        grpc_url=f"{host}:{port}",
        metrics_url=f"{scheme}://{host}:{http_port}/metrics",
        admin_url=config.admin_address,
        unix_url=None if config.unix_socket is None else f"{SCHEME}{config.unix_socket}",
        http_unix_socket=config.http_unix_socket,
        workers=config.workers,
        models=tuple(served),
        missing=missing,
    )


def _user_states(config: ServerConfig) -> UserStates | None:
    """Memory for users' states, which workers forked later share; None: none are kept."""
    size = config.user_cache_mib * MIB
    if not size:
        return None
    available = available_bytes()
    if size > available:
        raise CapacityError(
            f"--user-cache-mib: expected at most {available // MIB}, the available memory, "
            f"got {config.user_cache_mib}"
        )
    return UserStates(size, is_bfloat=config.user_cache_bf16, is_resident=True)


def _table_memory(config: ServerConfig) -> TableMemory | None:
    if config.row_memory_mib is not None:
        # Rows that are not in memory are read from the files past the page cache.
        return TableMemory.MAP
    return None if config.memory is None else TableMemory(config.memory)
