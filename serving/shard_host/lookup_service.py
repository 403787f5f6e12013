"""What a shard host answers: messages in, messages out."""

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
    """The methods of `sharded_infer.v1.ShardHost`; thread-safe."""

    def __init__(self, shares: HeldShares, host: int, counter: LookupCounter) -> None:
        """Answers from the shares that are held at the time of a call.

        Args:
            host: the host's number in the plans.
            counter: told of lookups that were answered.
        """
        self._shares, self._counter = shares, counter
        self._host = host

    def look_up(self, message: bytes) -> bytes:
        """Answers a LookupRequest with a LookupResponse.

        Raises:
            RequestError: as `read_lookup` and `ShareLookups.look_up`.
            NotFoundError: the version is not held here.
        """
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
        """Answers a DescribeRequest with a DescribeResponse, and keeps what its caller serves.

        Raises:
            RequestError: the bytes are not such a message.
        """
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
