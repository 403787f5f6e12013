"""The process of a shard host, from its settings to its end."""

import logging
import resource
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from serving.config.server_config import ServerConfig
from serving.control.server_state import ServerState
from serving.host.background import lower_priority
from serving.host.cores import slots_of
from serving.host.descriptors import allow_most_descriptors
from serving.host.malloc import give_back_freed_memory, keep_freed_memory
from serving.host.signal_flag import SignalFlag
from serving.http_api.http_server import HttpServer, http_limits, listen
from serving.metrics.families.server_families import MINOR_FAULTS
from serving.metrics.server_metrics import ServerMetrics
from serving.observability.trace_settings import TraceSampling
from serving.process.child_processes import leave
from serving.process.process_sampler import ProcessSampler
from serving.security.exposure import check_protection
from serving.security.guard import Guard, make_guard
from serving.security.tls import tls_files
from serving.shard_host.held_shares import HeldShares
from serving.shard_host.host_page import HostPage
from serving.shard_host.lookup_counts import LookupCounter
from serving.shard_host.lookup_server import LookupServer
from serving.shard_host.lookup_service import LookupService
from serving.shard_host.ready import HeldVersion, ShardHostReady
from serving.shard_host.share_loader import ShareLoader
from sharded_infer.errors import NotFoundError, ShardedInferError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository

if TYPE_CHECKING:
    from serving.observability.tracer import Tracer

_log = logging.getLogger("sharded_infer")
_POLL_SECONDS = 0.1
Bars = Callable[[], AbstractContextManager[Progress]]


def serve_shards(
    config: ServerConfig,
    host: int,
    *,
    on_ready: Callable[[ShardHostReady], None],
    progress: Bars = lambda: nullcontext(no_progress),
) -> None:
    """Load a host's share of the newest versions, and answer lookups until SIGTERM or SIGINT.

    Args:
        on_ready: called once, when every loadable version is loaded.
        progress: entered while versions load at the start.

    Raises:
        InputError: a port is not available, a public address has no TLS, tokens or `insecure`,
            or certificates or tokens cannot be read.
        NotFoundError: the repository does not exist, or has none of the models.
    """
    check_protection(config)
    repository = Repository(config.repository, trusted_keys=config.trusted_key)
    if not (config.models or repository.models()):
        raise NotFoundError(f"{config.repository}: holds no published model")
    allow_most_descriptors()
    # Lookups of several calls run in parallel instead.
    torch.set_num_threads(1)
    keep_freed_memory(config.slots or slots_of(1))
    stop, asked = SignalFlag(), SignalFlag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: asked.set())
    shares = HeldShares()
    loader = ShareLoader(
        repository,
        shares,
        host,
        models=config.models,
        topology=config.topology,
        row_memory_bytes=config.row_memory_bytes,
    )
    guard = make_guard(config)
    counter, metrics, state = LookupCounter(), ServerMetrics(), ServerState(1)
    metrics.registry.register(HostPage(host, shares, counter))
    service = LookupService(shares, host, counter)
    tracer = _tracer(config, host, metrics)
    server = LookupServer(config, service, shares.compiled, guard, counter, metrics, tracer)
    http_server = HttpServer(
        listen(config.host, config.http_port),
        metrics,
        state,
        limits=http_limits(config),
        guard=guard,
        admin_elsewhere=config.admin_address is not None,
        tls=tls_files(config),
        has_protocol=False,
    )
    with closing(http_server):
        # Listens while versions load, so that fronts learn to wait.
        port = server.listen(config.port)
        try:
            with progress() as told:
                loader.look(told)
            give_back_freed_memory()

            def show() -> None:
                # During the shutdown fronts must not come back.
                if not stop.is_set():
                    is_serving = bool(shares.all())
                    server.show_health(is_serving)
                    state.set_serving(0, is_serving)

            if not shares.all():
                _log.warning("holds no version: not ready until one can be loaded")
            show()
            metrics.serving(True, slots=server.thread_count)
            ProcessSampler(tuple, metrics).start()
            on_ready(_ready(config, port, http_server.server_port, host, shares))
            follower = threading.Thread(
                target=_follow,
                args=(loader, guard, config.poll_seconds or None, asked, show),
                name="follow",
                daemon=True,
            )
            follower.start()
            _wait(stop, metrics)
        finally:
            state.drain()
            server.show_health(False)
            _log.info("draining: up to %g s for lookups in flight", config.drain_seconds)
            server.stop(config.drain_seconds)
            if tracer is not None:
                tracer.stop()
    # Python would end the threads at any point; one in torch's code would abort the process.
    leave(0)


def _tracer(config: ServerConfig, host: int, metrics: ServerMetrics) -> "Tracer | None":
    if config.tracing is None:
        return None
    # Imported here: a host without traces saves 15 MiB and a fifth of a second.
    from serving.observability.tracer import start_tracing

    # Fronts decide about sampling.
    settings = replace(config.tracing, sampling=TraceSampling(0.0))
    return start_tracing(settings, {"host": host}, metrics.traces_dropped)


def _wait(stop: SignalFlag, metrics: ServerMetrics) -> None:
    faults = _minor_faults()
    # If the kernel delivers a signal to another thread, an endless wait would not notice it.
    while not stop.wait(_POLL_SECONDS):
        before, faults = faults, _minor_faults()
        metrics.add(MINOR_FAULTS, faults - before)


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _follow(
    loader: ShareLoader,
    guard: Guard | None,
    poll_seconds: float | None,
    asked: SignalFlag,
    show: Callable[[], None],
) -> None:
    lower_priority()
    told = ""
    while True:
        if asked.wait(poll_seconds):
            asked.clear()
            if guard is not None:
                guard.reload()
        try:
            loader.look()
            show()
            told = ""
        except (ShardedInferError, OSError) as error:
            # Held versions are served until the repository comes back. Logged once.
            if str(error) != told:
                _log.warning("the repository cannot be followed now: %s", error)
            told = str(error)
        except Exception:
            # A bug of ours must not end the following.
            _log.exception("internal error in following the repository")


def _ready(
    config: ServerConfig, port: int, http_port: int, host: int, shares: HeldShares
) -> ShardHostReady:
    scheme = "http" if config.tls_certificate is None else "https"
    # An IPv6 address stands in brackets before a port.
    address = f"[{config.host}]" if ":" in config.host else config.host
    return ShardHostReady(
        grpc_url=f"{address}:{port}",
        metrics_url=f"{scheme}://{address}:{http_port}/metrics",
        host_number=host,
        versions=tuple(
            HeldVersion(
                held.key.model,
                held.key.version,
                held.share.plan.topology.name,
                held.share.table_bytes,
            )
            for held in shares.all()
        ),
    )
