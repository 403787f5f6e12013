"""Costs of a front's calls of shard hosts: their own lookups, over the real network.

Lookups read the first row of a host's first piece. They change only the host's caches.

    small: a bag of one id. The front works before and after it waits; the rest is the round trip
    long:  many ids in one bag, of 8 bytes instead of 1 byte each: the host's work is the same
    wide:  many bags of one id; time beyond a small lookup's, without the ids', is for sums

Seconds of small lookups are medians. Bandwidths are those of the fastest lookups: other work on
the machines only slows them.
"""

import math
import os
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from kernels.bags import Bags
from serving.protocol.lookups.lookup_messages import Leases, read_described, write_describe
from serving.protocol.lookups.version_key import VersionKey
from serving.remote_lookups.host_clients import DESCRIBE, LOOKUP, HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from serving.transport.http2_client import OutgoingCall
from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.share_lookups import MAX_ANSWER_BYTES
from sharded_infer.planning.topology import FrontCosts
from sharded_infer.progress import Progress, no_progress
from sharded_infer.v1 import shard_host_pb2

_WARM_UP = 10
_SMALL_RUNS, _LARGE_RUNS = 100, 40
_IDS = 2**17
_ANSWER_BYTES = 2**20
# Of the median of small lookups: after it, an answer has come and the front need not wait.
_PAUSE = 2.0
# A smaller difference is noise, and counts as this.
_LEAST_SECONDS = 1e-6


class _HostFigures(NamedTuple):
    call_seconds: float
    round_trip_seconds: float
    send_bandwidth: float
    receive_bandwidth: float


def measure_hosts(settings: HostSettings, progress: Progress = no_progress) -> FrontCosts:
    """Measure the first replica of each host by about 400 lookups, and return medians of hosts.

    The front gets the least number that no host has. Raises InputError for unusable addresses or
    files, ShardHostError if a host does not answer or has no version, DeadlineError if it is late.
    """
    first = {host: replicas[:1] for host, replicas in settings.addresses.items()}
    clients = HostClients(settings._replace(addresses=first), answer_bytes=MAX_ANSWER_BYTES)
    found = []
    for number, host in enumerate(first):
        progress("asking hosts", number, len(first))
        found.append(_measure(clients, host))
    progress("asking hosts", len(first), len(first))
    own = next(number for number in range(len(first) + 1) if number not in first)
    return FrontCosts(own, *(median(figures) for figures in zip(*found, strict=True)))


def _measure(clients: HostClients, host: int) -> _HostFigures:
    key = _held(clients, host)
    small = _bags(1, 1)
    hosts = RemoteHosts(key, clients)
    look_up = partial(_look_up, hosts, host)
    columns = look_up(small)
    for _ in range(_WARM_UP):
        look_up(small)
    small_seconds = median(_seconds(partial(look_up, small)) for _ in range(_SMALL_RUNS))
    work = [_work_seconds(hosts, host, small, _PAUSE * small_seconds) for _ in range(_SMALL_RUNS)]
    call_seconds = min(small_seconds, median(work))
    narrow, broad = (_long_message(key, width) for width in (1, 8))
    asks = [partial(_ask, clients, host, LOOKUP, message) for message in (narrow, broad)]
    sent = len(broad) - len(narrow)
    send_bandwidth = sent / _difference(asks[0], asks[1])
    rows = max(2, _ANSWER_BYTES // (4 * columns))
    wide = partial(look_up, _bags(rows, 1))
    # An id and a length, of one byte each.
    seconds = _difference(partial(look_up, small), wide) - 2 * (rows - 1) / send_bandwidth
    receive_bandwidth = 4 * columns * (rows - 1) / max(_LEAST_SECONDS, seconds)
    return _HostFigures(
        call_seconds, small_seconds - call_seconds, send_bandwidth, receive_bandwidth
    )


def _held(clients: HostClients, host: int) -> VersionKey:
    held = read_described(_ask(clients, host, DESCRIBE, write_describe("", Leases())))
    [replica] = clients.now.groups[host].replicas
    name = clients.now.name(replica)
    if not held:
        raise ShardHostError(f"{name}: holds no version to ask for")
    if other := [one.host for one in held if one.host != host]:
        raise ShardHostError(f"{name}: answers as host {other[0]}")
    return max(one.key for one in held)


def _ask(clients: HostClients, host: int, path: int, message: bytes) -> memoryview:
    mine = clients.of_this_thread()
    [replica] = mine.hosts.groups[host].replicas
    call = OutgoingCall(mine.hosts.positions[replica], message, mine.hosts.seconds, path)
    mine.client.start([call])
    [answer] = mine.client.finish()
    if answer.status is not None:
        raise ShardHostError(f"{mine.hosts.name(replica)}: {answer.status.message}")
    return answer.message


def _look_up(hosts: RemoteHosts, host: int, bags: PieceBags) -> int:
    [answer] = hosts.start({host: [bags]}, math.inf).finish()[host]
    return answer.pooled.shape[1]


def _work_seconds(hosts: RemoteHosts, host: int, bags: PieceBags, pause: float) -> float:
    """Seconds of the front for a lookup whose answer has come before it is read."""
    began = perf_counter()
    started = hosts.start({host: [bags]}, math.inf)
    asked = now = perf_counter()
    while now < asked + pause:
        # Asleep, the core would lose its caches; a host on the same core must run.
        os.sched_yield()
        now = perf_counter()
    started.finish()
    return asked - began + perf_counter() - now


def _bags(bags: int, ids: int) -> PieceBags:
    lengths = torch.full((1, bags), ids)
    return PieceBags.of(
        np.zeros(1, np.int64), Bags(torch.zeros(bags * ids, dtype=torch.int64), lengths)
    )


def _long_message(key: VersionKey, width: int) -> bytes:
    """One bag of many ids, of more bytes than they need."""
    group = shard_host_pb2.LookupGroup(
        pieces=[0],
        lengths=_IDS.to_bytes(4, "little"),
        length_bytes=4,
        ids=bytes(width * _IDS),
        id_bytes=width,
    )
    return shard_host_pb2.LookupRequest(
        model=key.model, version=key.version, manifest=key.manifest, groups=[group]
    ).SerializeToString()


def _difference(less: Callable[[], object], more: Callable[[], object]) -> float:
    """Difference of the fastest times of two calls, which take turns."""
    turns = [(_seconds(less), _seconds(more)) for _ in range(_LARGE_RUNS)]
    return max(_LEAST_SECONDS, min(more for _, more in turns) - min(one for one, _ in turns))


def _seconds(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began
