"""Plain lookups from shard hosts: gRPC's own client, and a call for each piece."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import grpc
import numpy as np
import torch
from torch import Tensor

from kernels.bags import Bags
from serving.protocol.lookups.lookup_messages import LOOKUP_PATH, write_lookup
from serving.protocol.lookups.sum_messages import read_sums
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.lookups.shard_hosts import GroupAnswer, PieceBags, StartedLookup
from sharded_infer.tensors import tensor_of

_SECONDS = 60.0


class PlainHosts:
    """A plain `ShardHosts` for a single thread."""

    lost: frozenset[int] = frozenset()

    def __init__(self, key: VersionKey, addresses: Mapping[int, str]) -> None:
        self.hosts = frozenset(addresses)
        self._key = key
        self._calls: dict[int, Any] = {
            host: grpc.insecure_channel(
                address, [("grpc.max_receive_message_length", -1)]
            ).unary_unary(LOOKUP_PATH)
            for host, address in addresses.items()
        }

    def start(
        self,
        asked: Mapping[int, Sequence[PieceBags]],
        deadline: float,
        may_lose: Collection[int] = (),
    ) -> StartedLookup:
        """Start lookups; each call has its own time limit, and none is lost."""
        return _Started(
            {
                host: [[self._ask(host, one) for one in _each_piece(group)] for group in groups]
                for host, groups in asked.items()
            },
            asked,
        )

    def _ask(self, host: int, group: PieceBags) -> Any:
        return self._calls[host].future(bytes(write_lookup(self._key, [group])), timeout=_SECONDS)


class _Started:
    def __init__(
        self, calls: Mapping[int, list[list[Any]]], asked: Mapping[int, Sequence[PieceBags]]
    ) -> None:
        self._calls, self._asked = calls, asked

    def finish(self) -> Mapping[int, Sequence[GroupAnswer]]:
        return {
            host: [
                GroupAnswer(
                    torch.cat(
                        [_sums(call.result(), group.bags.lengths.shape[1]) for call in calls], dim=1
                    )
                )
                for calls, group in zip(self._calls[host], groups, strict=True)
            ]
            for host, groups in self._asked.items()
        }

    def cancel(self) -> None:
        for groups in self._calls.values():
            for calls in groups:
                for call in calls:
                    call.cancel()


def _sums(message: bytes, rows: int) -> Tensor:
    [found] = read_sums(memoryview(message), [rows])
    return tensor_of(found)


def _each_piece(group: PieceBags) -> list[PieceBags]:
    bags = group.bags
    ends = np.cumsum(bags.lengths.numpy().sum(1)).tolist()
    return [
        PieceBags.of(
            group.pieces[number : number + 1],
            Bags(
                bags.values[first:end],
                bags.lengths[number : number + 1],
                None if bags.weights is None else bags.weights[first:end],
            ),
        )
        for number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]
