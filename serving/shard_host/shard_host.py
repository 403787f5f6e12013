"""The process of a shard host, from its settings to its end."""

import logging
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

from serving.config.server_config import ServerConfig
from serving.host.background import lower_priority
from serving.host.cores import slots_of
from serving.host.descriptors import allow_most_descriptors
from serving.host.malloc import give_back_freed_memory, keep_freed_memory
from serving.process.child_processes import leave
from serving.security.exposure import check_protection
from serving.security.guard import Guard, make_guard
from serving.shard_host.held_shares import HeldShares
from serving.shard_host.lookup_server import LookupServer
from serving.shard_host.lookup_service import LookupService
from serving.shard_host.ready import HeldVersion, ShardHostReady
from serving.shard_host.share_loader import ShareLoader
from sharded_infer.errors import NotFoundError, ShardedInferError
from sharded_infer.progress import Progress, no_progress
from sharded_infer.repositories.repository import Repository

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
    """Loads a host's share of the newest versions and answers lookups until SIGTERM or SIGINT.

    Args:
        host: the host's number in the plans.
        on_ready: called once, when every version that can be loaded is.
        progress: entered while versions load at the start.

    Raises:
        InputError: the port is not available, a public address has no TLS, tokens or `insecure`,
            or certificates or tokens cannot be read.
        NotFoundError: the repository does not exist, or holds none of the models.
    """
    check_protection(config)
    repository = Repository(config.repository)
    if not (config.models or repository.models()):
        raise NotFoundError(f"{config.repository}: holds no published model")
    allow_most_descriptors()
    # Lookups of several calls run in parallel instead.
    torch.set_num_threads(1)
    keep_freed_memory(config.slots or slots_of(1))
    stop, asked = threading.Event(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: asked.set())
    shares = HeldShares()
    loader = ShareLoader(repository, shares, host, models=config.models, topology=config.topology)
    guard = make_guard(config)
    server = LookupServer(config, LookupService(shares, host), shares.compiled, guard)
    # It listens while versions load, so that fronts are told to wait.
    port = server.listen(config.port)
    try:
        with progress() as told:
            loader.look(told)
        give_back_freed_memory()

        def show() -> None:
            # The end has begun: fronts must not come back.
            if not stop.is_set():
                server.show_health(bool(shares.all()))

        show()
        on_ready(_ready(config, port, host, shares))
        follower = threading.Thread(
            target=_follow,
            args=(loader, guard, config.poll_seconds or None, asked, show),
            name="follow",
            daemon=True,
        )
        follower.start()
        # If the kernel delivers a signal to another thread, an endless wait would not notice it.
        while not stop.wait(_POLL_SECONDS):
            pass
    finally:
        server.show_health(False)
        _log.info("draining: up to %g s for lookups in flight", config.drain_seconds)
        server.stop(config.drain_seconds)
    # Python would end the threads wherever they are, and one in torch's code would abort.
    leave(0)


def _follow(
    loader: ShareLoader,
    guard: Guard | None,
    poll_seconds: float | None,
    asked: threading.Event,
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
            # What is held is served until the repository comes back. Said once.
            if str(error) != told:
                _log.warning("the repository cannot be followed now: %s", error)
            told = str(error)
        except Exception:
            # A bug of ours must not end the following.
            _log.exception("internal error in following the repository")


def _ready(config: ServerConfig, port: int, host: int, shares: HeldShares) -> ShardHostReady:
    # An IPv6 address stands in brackets before a port.
    address = f"[{config.host}]" if ":" in config.host else config.host
    return ShardHostReady(
        grpc_url=f"{address}:{port}",
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
