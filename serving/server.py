"""A server: its processes wired together, ready, and ended."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress

import torch

from serving.background import lower_priority
from serving.board import Board
from serving.child_processes import leave
from serving.compiled_code import missing_code, missing_text
from serving.config import ALL_MODELS, ServerConfig
from serving.dashboard.dashboard import Dashboard
from serving.follow_settings import FollowSettings
from serving.following import Following
from serving.freed_memory import give_back_freed_memory, keep_freed_memory
from serving.input_check import InputLimits
from serving.installer import Installer
from serving.lane import Mode
from serving.metric_family import Detail
from serving.metrics import Metrics
from serving.model_store import ModelStore
from serving.pages import Pages, http_door, http_limits, listen
from serving.protection import check_protection
from serving.ready import Ready, ServedModel
from serving.server_state import ServerState
from serving.shared_memory import SharedMemory
from serving.snapshot import ServingOverrides, Snapshot
from serving.supervisor import supervise
from serving.tls import tls_files
from serving.transport import check_transport
from serving.worker import Worker, slots_of
from sharded_infer.errors import NotFoundError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repository import Repository
from sharded_infer.table_memory import TableMemory

_log = logging.getLogger("sharded_infer")
# Places in the metrics for versions that have gone: their counts stay to be scraped for a while.
_SPARE_SLOTS = 2
# Models that may come to a server which clients tell what to load.
_SPARE_MODELS = 64


Bars = Callable[[], AbstractContextManager[Progress]]


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[Ready], None],
    progress: Bars = lambda: nullcontext(no_progress),
) -> None:
    """Loads the models and serves them until SIGTERM or SIGINT; then drains and returns.

    Args:
        config: the server's settings.
        on_ready: called once, when the models are loaded and every worker answers.
        progress: entered while models load; told how far loading is.

    Raises:
        InputError: a port cannot be had, the transport lacks what is configured, or the settings
            let in whoever comes and do not say that they mean it.
        NotFoundError: the repository holds none of the models.
        ArtifactError, GateError: its only model's version is damaged or does not score as it
            should; with `strict` any model's.
        UnservedError: none of its models can be served.
    """
    check_transport(config)
    check_protection(config)
    # On this kind of work OpenMP's barriers cost more than they give; requests run side by side.
    torch.set_num_threads(1)
    # Kernels by layer and batch size (sharded_infer/batch_sizes.py): a large tower has more than
    # the 1,024 that oneDNN keeps by itself. It reads this at its first kernel.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")
    if not keep_freed_memory(config.slots or slots_of(config.workers)):
        _log.warning("this C library cannot be told to keep freed memory: requests may fault pages")
    if missing := tuple(code for code in missing_code() if code.serves):
        _log.warning("%s", missing_text(missing))
    repository = Repository(config.repository)
    models = _first_models(config, repository)
    known = list(dict.fromkeys((*(repository.models() if config.explicit else ()), *models)))
    slots = config.follow.most_held + _SPARE_SLOTS
    spare = _SPARE_MODELS if config.explicit else 0
    metrics = Metrics(
        config.workers,
        most_versions=slots * (len(known) + spare),
        detail=Detail[config.metrics.upper()],
    )
    for name in known:
        metrics.follow(name, slots=slots, labels=config.follow.labels)
    metrics.spare(spare, slots=slots, labels=config.follow.labels)
    shared = (
        SharedMemory(most_bytes=config.max_message_bytes) if config.offers_shared_memory else None
    )
    state = ServerState(config.workers, shared)
    state.logs.attach(_log)
    memory = None if config.memory is None else TableMemory(config.memory)
    store = ModelStore(
        repository,
        metrics,
        topology=config.topology,
        max_batch=config.max_batch,
        overrides=ServingOverrides(
            None if config.executor is None else Mode(config.executor),
            config.max_delay_us,
            memory,
            config.devices,
            config.slots > 0,
            InputLimits(config.max_ids, config.max_inputs),
        ),
    )
    store.announce(models)
    settings = FollowSettings(
        config.follow,
        config.poll_seconds,
        config.spare_bytes,
        config.workers,
        memory,
        explicit=config.explicit,
    )
    following = Following(repository, Board(config.workers), metrics, settings)
    served: list[ServedModel] = []
    unserved: dict[str, str] = {}

    def load() -> Installer:
        with progress() as told:
            installer = following.load_first(store, models, told, strict=config.strict)
        give_back_freed_memory()
        served.extend(map(_served, store.defaults()))
        unserved.update(following.missing())
        for name, reason in unserved.items():
            fields = {"model": name, "reason": reason}
            _log.error("the server starts without a model", extra=fields)
        return installer

    def ready(port: int, metrics_port: int) -> None:
        on_ready(_ready(config, port, metrics_port, served, unserved))

    if config.workers > 1:
        supervise(config, store, metrics, state, following=following, load=load, on_ready=ready)
    else:
        _serve_alone(config, store, metrics, state, following=following, load=load, on_ready=ready)


def _first_models(config: ServerConfig, repository: Repository) -> list[str]:
    """The models to load before anybody is served."""
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
    store: ModelStore,
    metrics: Metrics,
    state: ServerState,
    *,
    following: Following,
    load: Callable[[], Installer],
    on_ready: Callable[[int, int], None],
) -> None:
    stop, asked = threading.Event(), threading.Event()

    def look(*_: object) -> None:
        state.ask_reload()
        asked.set()

    signal.signal(signal.SIGHUP, look)

    def end(*_: object) -> None:
        state.drain()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    worker = Worker(config, store, metrics, state, following.board)
    listener = listen(config.host, config.metrics_port)
    board = following.board
    dashboard = Dashboard(metrics.registry, state, board, topology=config.topology)
    pages = Pages(
        listener,
        metrics,
        state,
        dashboard,
        api=worker.rest,
        limits=http_limits(config),
        door=http_door(config, worker.guard),
        tls=tls_files(config),
        missing=following.missing,
        is_live=worker.goes_on,
    )
    with closing(pages):
        # It listens while it loads, so that clients are told to wait.
        port = worker.listen(config.port)
        try:
            installer = load()
            worker.warm_up()
        except BaseException:
            # Ending it takes a thread: where memory is short, that is not what failed first.
            with suppress(RuntimeError):
                worker.close()
            raise
        installer.start()
        thread = threading.Thread(
            target=_follow, args=(following, stop, asked), name="follower", daemon=True
        )
        thread.start()
        try:
            worker.serve(
                stop,
                on_ready=lambda: on_ready(port, pages.server_port),
                grace_seconds=config.grace_seconds,
            )
        finally:
            stop.set()
            asked.set()
            installer.stop()
    if worker.runs_still:
        _log.error("a batch that hangs is left behind")
        # Python would wait for its thread.
        leave(0)


def _follow(following: Following, stop: threading.Event, asked: threading.Event) -> None:
    lower_priority()
    following.follower().run(stop, asked)


def _served(snapshot: Snapshot) -> ServedModel:
    model = snapshot.model
    return ServedModel(
        name=model.name,
        version=model.version,
        topology=model.plan.topology.name,
        table_bytes=model.artifact.manifest.table_bytes,
        memory=model.memory.value,
        kernels=dict(model.engine.backends),
        executor=snapshot.lane.policy.mode.value,
    )


def _ready(
    config: ServerConfig,
    port: int,
    metrics_port: int,
    served: list[ServedModel],
    missing: dict[str, str],
) -> Ready:
    scheme = "http" if config.tls_certificate is None else "https"
    return Ready(
        grpc_url=f"{config.host}:{port}",
        metrics_url=f"{scheme}://{config.host}:{metrics_port}/metrics",
        admin_url=config.admin_address,
        workers=config.workers,
        transport=config.transport,
        models=tuple(served),
        missing=missing,
    )
