"""Answers of a shard host to messages."""

from collections.abc import Sequence
from time import monotonic

from serving.protocol.lookups.lookup_messages import read_describe, read_lookup
from serving.protocol.lookups.sum_messages import write_sums
from serving.protocol.lookups.unknown_messages import write_refusal, write_unknown
from serving.shard_host.held_shares import HeldShares
from serving.shard_host.lookup_counts import LookupCounter, counts_of
from sharded_infer.lookups.lookup_work import StepWork
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.v1 import shard_host_pb2


class LookupService:
    """Methods of `sharded_infer.v1.ShardHost`; thread-safe."""

    def __init__(self, shares: HeldShares, host: int, counter: LookupCounter) -> None:
        self._shares, self._counter = shares, counter
        self._host = host

    def look_up(self, message: bytes) -> bytes:
        """Answer a LookupRequest; RequestError if malformed, NotFoundError without the version."""
        began = monotonic()
        key, share, groups = read_lookup(message)
        work: Sequence[StepWork] = ()
        try:
            found = self._shares.get(key, share).share.lookups.look_up(groups)
        except UnknownIdError as error:
            answer = write_refusal(error.where)
        else:
            work, sums = found.work, [pooled.numpy() for pooled in found.pooled]
            answer = write_sums(sums, [group.sum_bytes for group in groups])
            answer += write_unknown(groups, found.unknown)
        seconds = monotonic() - began
        self._counter.answered(counts_of(work, len(message), len(answer), seconds))
        return answer

    def describe(self, message: bytes) -> bytes:
        """Answer a DescribeRequest, and keep its caller's leases; RequestError for other bytes."""
        model, leases = read_describe(message)
        self._shares.lease(leases)
        versions = [
            shard_host_pb2.HeldVersion(
                model=held.key.model,
                version=held.key.version,
                manifest=held.key.manifest,
                topology=held.share.plan.topology.name,
                host=self._host,
                share=bytes.fromhex(held.share.digest),
            )
            for held in self._shares.all()
            if model in ("", held.key.model)
        ]
        return shard_host_pb2.DescribeResponse(versions=versions).SerializeToString()
