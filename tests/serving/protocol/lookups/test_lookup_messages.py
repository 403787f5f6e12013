from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.bags import Bags
from serving.protocol.lookups.lookup_messages import (
    Leases,
    read_describe,
    read_lookup,
    write_describe,
    write_lookup,
    write_lookups,
)
from serving.protocol.lookups.sum_messages import read_sums, write_sums
from serving.protocol.lookups.version_key import VersionKey
from sharded_infer.errors import InternalError, RequestError
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.tensors import tensor_of
from sharded_infer.v1 import shard_host_pb2
from tests.reference.lookup_request import write_lookup_by_numpy
from tests.serving.protocol.mutations import mutations

KEY = VersionKey("ranker", 7, 2**64 - 3)
SHARE = 0xFEDCBA9876543210


def group_of(
    seed: int,
    *,
    pieces: int,
    bags: int,
    most_ids: int,
    most: int,
    least: int = 0,
    weighted: bool = False,
) -> PieceBags:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, most_ids + 1, (pieces, bags))
    count = int(lengths.sum())
    ids = generator.integers(least, most, count)
    weights = tensor_of(generator.random(count, np.float32)) if weighted else None
    bags = Bags(tensor_of(ids), tensor_of(lengths), weights)
    return PieceBags.of(generator.integers(0, 40, pieces), bags)


GROUPS = {
    "one id": group_of(0, pieces=1, bags=1, most_ids=0, most=1),
    "bytes": group_of(1, pieces=3, bags=5, most_ids=4, most=200),
    "two bytes": group_of(2, pieces=2, bags=2, most_ids=700, most=60_000),
    "four bytes": group_of(3, pieces=26, bags=40, most_ids=3, most=2**32),
    "eight bytes": group_of(4, pieces=2, bags=9, most_ids=3, most=2**40),
    "weights": group_of(5, pieces=4, bags=6, most_ids=5, most=1000, weighted=True),
    "bf16": replace(group_of(6, pieces=4, bags=3, most_ids=5, most=1000), sum_bytes=2),
    "raw": replace(
        group_of(7, pieces=3, bags=4, most_ids=4, least=-(2**63), most=2**63 - 1), raw=True
    ),
    "small raw": replace(group_of(8, pieces=3, bags=4, most_ids=4, most=200), raw=True),
}


def test_requests_are_read_as_they_were_written() -> None:
    key, share, groups = read_lookup(bytes(write_lookup(KEY, list(GROUPS.values()), SHARE)))
    assert (key, share) == (KEY, SHARE)
    for read, wanted in zip(groups, GROUPS.values(), strict=True):
        np.testing.assert_array_equal(read.pieces, wanted.pieces)
        assert (read.sum_bytes, read.raw) == (wanted.sum_bytes, wanted.raw)
        assert torch.equal(read.bags.lengths, wanted.bags.lengths)
        assert torch.equal(read.bags.values, wanted.bags.values)
        weights = [group.bags.weights for group in (read, wanted)]
        assert weights == [None, None] or torch.equal(*weights)  # type: ignore[arg-type]


def test_compiled_code_writes_the_bytes_of_the_reference() -> None:
    every = list(GROUPS.values())
    asked = [*([group] for group in every), every, every[3:]]
    for groups in asked:
        for share, rows in ((0, False), (SHARE, True)):
            written = bytes(write_lookup(KEY, groups, share, rows=rows))
            assert written == write_lookup_by_numpy(KEY, groups, share, rows=rows)
    messages = [bytes(one) for one in write_lookups(KEY, [(one, SHARE) for one in asked])]
    assert messages == [write_lookup_by_numpy(KEY, groups, SHARE) for groups in asked]


def test_arrays_that_are_not_contiguous_are_written() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.ones(6, 4, dtype=torch.int64).T
    values = torch.randint(0, 300, (48,), generator=generator)[::2]
    weights = torch.rand(48, generator=generator)[::2]
    group = PieceBags.of(np.arange(4), Bags(values, lengths, weights))
    assert bytes(write_lookup(KEY, [group])) == write_lookup_by_numpy(KEY, [group])


def test_sums_are_read_as_they_were_written() -> None:
    generator = np.random.default_rng(0)
    sums = [generator.random(shape, np.float32) for shape in ((1, 3), (4, 3), (300, 128), (2, 0))]
    sums.append(sums[1][:, ::2])
    found = read_sums(memoryview(write_sums(sums)), [len(one) for one in sums])
    for one, other in zip(found, sums, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sums_of_16_bits_are_those_of_bf16() -> None:
    generator = np.random.default_rng(0)
    sums = [generator.standard_normal(shape, np.float32) for shape in ((1, 3), (4, 3), (2, 0))]
    widths = [2, 4, 2]
    message = write_sums(sums, widths)
    assert len(message) == 2 * 3 + 4 * 12 + 3 * 2
    for found, one, width in zip(
        read_sums(memoryview(message), [1, 4, 2], widths), sums, widths, strict=True
    ):
        exact = torch.from_numpy(one)
        expected = exact.bfloat16().float() if width == 2 else exact
        np.testing.assert_array_equal(found, expected.numpy())


def test_protobuf_writes_the_same_sums() -> None:
    message = write_sums([np.ones((2, 3), np.float32), np.zeros((1, 0), np.float32)])
    assert shard_host_pb2.LookupResponse.FromString(message).SerializeToString() == message


@pytest.mark.parametrize(
    "newer",
    [
        b"\x38\x07",
        b"\x38" + b"\xff" * 9 + b"\1",
        b"\x3a\x03new",
        b"\xc1\x3e" + b"7" * 8,
        b"\x3d1234",
    ],
)
def test_fields_of_a_newer_release_are_passed_over(newer: bytes) -> None:
    ones = np.ones((2, 3), np.float32)
    written = write_sums([ones])
    message = newer + written + newer + written + newer
    assert len(shard_host_pb2.LookupResponse.FromString(message).sums) == 2
    for found in read_sums(memoryview(message), [2, 2]):
        np.testing.assert_array_equal(found, ones)


def test_sums_of_other_groups_are_refused() -> None:
    written = memoryview(write_sums([np.zeros((2, 3), np.float32)]))
    for expected in ([4], [2, 1], []):
        with pytest.raises(InternalError, match=r"sums of \[24\] bytes, expected numbers of \["):
            read_sums(written, expected)


# No LookupResponse: fields that are cut, endless, of no wire type, or of another one.
NO_ANSWERS = (
    b"\xff",
    b"\x0a\x05abcd",
    b"\x0a" + b"\xff" * 9,
    b"\x12\0",
    b"\x02\0",
    b"\x28" + b"\xff" * 10,
    b"\x2b",
)


@pytest.mark.parametrize(
    "bad", [*NO_ANSWERS, b"\x0a", b"\x8a\0\0", b"\x1a\x02ab", b"\x22\x02ab", b"\x29" + b"7" * 7]
)
def test_bytes_that_are_no_sums_are_refused(bad: bytes) -> None:
    with pytest.raises(InternalError, match="not a LookupResponse"):
        read_sums(memoryview(bad), [1])


def small(**changes: object) -> bytes:
    """A request of one group: two pieces, two bags each, ids 1, 2 and 3."""
    fields: dict[str, object] = {
        "pieces": [0, 1],
        "lengths": bytes((1, 0, 1, 1)),
        "length_bytes": 1,
        "ids": bytes((1, 2, 3)),
        "id_bytes": 1,
    }
    group = shard_host_pb2.LookupGroup(**{**fields, **changes})  # type: ignore[arg-type]
    return shard_host_pb2.LookupRequest(model="ranker", groups=[group]).SerializeToString()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pieces": []}, "group 0: 4 lengths for 0 pieces"),
        ({"ids": b"\1\2"}, "group 0: the lengths add up to 3, there are 2 ids"),
        ({"id_bytes": 2}, "group 0: ids: 3 bytes of numbers of 2 bytes"),
        ({"id_bytes": 0}, "group 0: ids: 3 bytes of numbers of 0 bytes"),
        ({"length_bytes": 8}, "group 0: lengths: 4 bytes of numbers of 8 bytes"),
        ({"length_bytes": 2**31}, "group 0: lengths: 4 bytes of numbers of 2147483648 bytes"),
        ({"weights": [1.0]}, "group 0: 1 weight for 3 ids"),
        ({"sum_bytes": 3}, "group 0: sums of 3 bytes each, expected 2 or 4 bytes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(
    changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        read_lookup(small(**changes))


def test_bytes_that_are_no_request_are_refused() -> None:
    with pytest.raises(RequestError, match="not a LookupRequest"):
        read_lookup(b"\xff\xff")


def test_changed_bytes_are_read_or_refused() -> None:
    message = bytes(write_lookup(KEY, list(GROUPS.values())[:3]))
    for changed in mutations(message, 0, 3000):
        try:
            _, _, groups = read_lookup(changed)
        except RequestError:
            continue
        for group in groups:
            assert len(group.bags.lengths) == group.pieces.size
            assert group.bags.lengths.sum() == len(group.bags.values)


@pytest.mark.parametrize("served", [[], [KEY], [KEY, VersionKey("other", 2**40, 0)]])
def test_what_a_front_serves_is_read_as_it_was_written(served: list[VersionKey]) -> None:
    for model in ("", "ranker"):
        for front in (0, 2**64 - 1):
            leases = Leases(front, tuple(served))
            assert read_describe(write_describe(model, leases)) == (model, leases)
    with pytest.raises(RequestError, match="not a DescribeRequest"):
        read_describe(b"\xff")
