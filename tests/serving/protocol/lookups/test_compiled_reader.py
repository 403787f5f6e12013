from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.backends.native import kernel_for_compiled_code
from kernels.bags import Bags
from kernels.fused_tables import FusedTables
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat
from serving.protocol.lookups.compiled_reader import read_answer, reads_rows
from sharded_infer.errors import InternalError
from sharded_infer.lookups.shard_hosts import PieceBags, StoredPieces
from sharded_infer.v1 import shard_host_pb2
from tests.reference.row_encoding import encode
from tests.serving.protocol.lookups.test_lookup_messages import NO_ANSWERS
from tests.serving.protocol.mutations import mutations

KERNEL = kernel_for_compiled_code()
pytestmark = [
    pytest.mark.skipif(KERNEL is None, reason="the package was built without a compiler"),
    pytest.mark.usefixtures("poisoned_memory"),
]
ROWS = 50
# Format, columns and pooling of each piece.
PIECES = [
    (row_format, 3 + 5 * number, number % 2 == 1) for number, row_format in enumerate(RowFormat)
]
TABLES = [
    encode(row_format, torch.randn(ROWS, dim, generator=torch.Generator().manual_seed(dim)))
    for row_format, dim, _ in PIECES
]


def group_of(
    generator: np.random.Generator, numbers: Sequence[int], bags: int, *, weighted: bool = False
) -> PieceBags:
    lengths = generator.integers(0, 4, (len(numbers), bags))
    ids = generator.integers(0, ROWS, int(lengths.sum()))
    weights = torch.rand(len(ids)) if weighted else None
    bags = Bags(torch.from_numpy(ids), torch.from_numpy(lengths), weights)
    return replace(PieceBags.of(np.array(numbers, np.int64), bags), stored=stored_of(numbers))


def stored_of(numbers: Sequence[int]) -> StoredPieces:
    return stored_pieces([PIECES[number] for number in numbers])


def stored_pieces(pieces: Sequence[tuple[RowFormat, int, bool]]) -> StoredPieces:
    """Pieces by their format, columns and pooling."""
    assert KERNEL is not None
    return StoredPieces(
        np.array([(d, f.row_bytes(d), KERNEL.formats[f], mean) for f, d, mean in pieces], np.int64),
        sum(dim for _, dim, _ in pieces),
    )


def sums_of(group: PieceBags) -> list[torch.Tensor]:
    """Fp32 `[R, dim]` of each entry, by the kernel from the whole table."""
    lengths = group.bags.lengths
    ends = lengths.sum(1).cumsum(0).tolist()
    found = []
    for entry, number in enumerate(group.pieces.tolist()):
        row_format, dim, mean = PIECES[number]
        ids = slice(ends[entry] - int(lengths[entry].sum()), ends[entry])
        weights = None if group.bags.weights is None else group.bags.weights[ids]
        memory = TABLES[number].reshape(-1)
        tables = FusedTables(memory, row_format, (0,), (ROWS,), (dim,), (mean,))
        bags = Bags(group.bags.values[ids], lengths[entry : entry + 1], weights)
        found.append(PooledLookup(tables)(bags))
    return found


def rows_of(group: PieceBags, entry: int) -> bytes:
    """Stored rows of an entry's distinct ids, in the order of their first occurrence."""
    lengths = group.bags.lengths.sum(1).tolist()
    first = sum(lengths[:entry])
    ids = dict.fromkeys(group.bags.values[first : first + lengths[entry]].tolist())
    table = TABLES[int(group.pieces[entry])]
    return table[torch.tensor(list(ids), dtype=torch.int64)].numpy().tobytes()


def answer_of(
    groups: Sequence[PieceBags], by_rows: Sequence[Sequence[bool]]
) -> shard_host_pb2.LookupResponse:
    """An answer with rows for some entries of each group."""
    answer = shard_host_pb2.LookupResponse()
    for group, chosen in zip(groups, by_rows, strict=True):
        sums = sums_of(group)
        kept = [one for one, rows in zip(sums, chosen, strict=True) if not rows]
        joined = torch.cat(kept, 1) if kept else torch.empty(0)
        if group.sum_bytes == 2:
            joined = joined.bfloat16().view(torch.int16)
        answer.sums.append(joined.numpy().tobytes())
        for entry, has_rows in enumerate(chosen):
            row_bytes = PIECES[group.pieces[entry]][0].row_bytes(PIECES[group.pieces[entry]][1])
            rows = rows_of(group, entry) if has_rows else b""
            answer.rows += rows
            answer.row_counts.append(1 + len(rows) // row_bytes if has_rows else 0)
    return answer


def read(message: bytes, groups: Sequence[PieceBags]) -> list[torch.Tensor]:
    return [answer.pooled for answer in read_answer(memoryview(message), groups)]


def test_rows_are_pooled_to_the_bits_of_sums() -> None:
    generator = np.random.default_rng(0)
    for turn in range(200):
        groups = [
            group_of(
                generator,
                generator.integers(0, len(PIECES), int(generator.integers(1, 9))).tolist(),
                int(generator.integers(1, 6)),
                weighted=turn % 3 == 0,
            )
            for _ in range(int(generator.integers(1, 4)))
        ]
        assert reads_rows(groups)
        share = generator.choice([0.0, 0.5, 1.0])
        by_rows = [[bool(generator.random() < share) for _ in one.pieces] for one in groups]
        message = answer_of(groups, by_rows).SerializeToString()
        for found, group in zip(read(message, groups), groups, strict=True):
            np.testing.assert_array_equal(found.numpy(), torch.cat(sums_of(group), 1).numpy())


def test_sums_of_16_bits_are_those_of_bf16() -> None:
    generator = np.random.default_rng(6)
    for _ in range(50):
        numbers = generator.integers(0, len(PIECES), int(generator.integers(1, 6))).tolist()
        group = replace(group_of(generator, numbers, int(generator.integers(1, 6))), sum_bytes=2)
        for chosen in ([False] * len(numbers), [bool(bit) for bit in generator.integers(0, 2, 6)]):
            by_rows = chosen[: len(numbers)]
            message = answer_of([group], [by_rows]).SerializeToString()
            [found] = read(message, [group])
            exact = sums_of(group)
            expected = [
                one if rows else one.bfloat16().float()
                for one, rows in zip(exact, by_rows, strict=True)
            ]
            np.testing.assert_array_equal(found.numpy(), torch.cat(expected, 1).numpy())
            whole = torch.cat(exact, 1)
            assert ((found - whole).abs() <= whole.abs() / 256).all()
        wide = answer_of([replace(group, sum_bytes=4)], [[False] * len(numbers)])
        with pytest.raises(InternalError, match=r"sums of \d+ bytes, expected \d+ for group 0"):
            read(wide.SerializeToString(), [group])


def test_groups_without_stored_pieces_have_sums_alone() -> None:
    group = group_of(np.random.default_rng(1), [0, 1], 3)
    plain = PieceBags.of(group.pieces, group.bags)
    assert not reads_rows([group, plain])
    half = replace(plain, sum_bytes=2)
    for asked, expected in (
        (plain, torch.cat(sums_of(group), 1)),
        (half, torch.cat(sums_of(group), 1).bfloat16().float()),
    ):
        message = answer_of([asked], [[False, False]])
        message.ClearField("row_counts")
        [found] = read(message.SerializeToString(), [asked])
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    with pytest.raises(InternalError, match="not a LookupResponse"):
        read(answer_of([group], [[True, False]]).SerializeToString(), [plain])


def test_fields_of_a_newer_release_are_passed_over() -> None:
    group = group_of(np.random.default_rng(2), [4, 5], 3)
    message = answer_of([group], [[True, False]]).SerializeToString()
    for newer in (b"\x38\x07", b"\x3a\x03new", b"\xc1\x3e" + b"7" * 8, b"\x3d1234"):
        [found] = read(newer + message + newer, [group])
        np.testing.assert_array_equal(found.numpy(), torch.cat(sums_of(group), 1).numpy())


# Pieces 4 and 2: rows of the first came, three of them, and sums of the other.
_IDS = torch.tensor([7, 9, 7, 1, 3, 3])
_GROUP = replace(
    PieceBags.of(np.array([4, 2]), Bags(_IDS, torch.tensor([[2, 1, 1], [1, 0, 1]]))),
    stored=stored_of([4, 2]),
)
_ROW_BYTES = RowFormat.INT8.row_bytes(PIECES[4][1])
_SUM_BYTES = 4 * 3 * PIECES[2][1]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sums": []}, "sums of 0 groups, expected 1"),
        (
            {"sums": [bytes(_SUM_BYTES + 1)]},
            f"sums of {_SUM_BYTES + 1} bytes, expected {_SUM_BYTES} for group 0",
        ),
        ({"row_counts": [4]}, "4 bytes of numbers of rows, expected 8"),
        ({"row_counts": [5, 0]}, "4 rows for entry 0 of group 0, expected 3"),
        ({"row_counts": [2**32 - 1, 0]}, "4294967294 rows for entry 0 of group 0, expected 3"),
        ({"row_counts": [4, 2]}, f"sums of {_SUM_BYTES} bytes, expected 0 for group 0"),
        ({"row_counts": [0, 2]}, f"sums of {_SUM_BYTES} bytes"),
        (
            {"rows": bytes(3 * _ROW_BYTES - 1)},
            f"{3 * _ROW_BYTES - 1} bytes of rows for entry 0 of group 0 and later ones, "
            f"expected {3 * _ROW_BYTES}",
        ),
        (
            {"rows": bytes(4 * _ROW_BYTES)},
            f"{4 * _ROW_BYTES} bytes of rows, expected {3 * _ROW_BYTES}",
        ),
    ],
)
def test_answers_with_other_rows_than_were_asked_are_refused(
    changes: dict[str, object], reason: str
) -> None:
    answer = answer_of([_GROUP], [[True, False]])
    fields = {"sums": list(answer.sums), "row_counts": list(answer.row_counts), "rows": answer.rows}
    changed = shard_host_pb2.LookupResponse(**{**fields, **changes})  # type: ignore[arg-type]
    with pytest.raises(InternalError, match=reason):
        read(changed.SerializeToString(), [_GROUP])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_answers_that_cannot_be_those_of_raw_ids_are_refused(is_compiled: bool) -> None:
    plain = _GROUP if is_compiled else replace(_GROUP, stored=None)
    groups = [replace(plain, raw=True), plain]
    answer = answer_of([_GROUP] * 2, [[False, False]] * 2)
    answer.ClearField("row_counts")
    for unknown, words in (
        ([2**31] * 6, "more unknown ids than group 0 has ids"),
        ([0] * 5, "20 bytes of numbers of unknown ids, expected 24"),
        ([0] * 7, "28 bytes of numbers of unknown ids, expected 24"),
    ):
        changed = shard_host_pb2.LookupResponse(sums=answer.sums, unknown=unknown)
        with pytest.raises(InternalError, match=words):
            read(changed.SerializeToString(), groups)
    for group, entry, bag in ((2, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 3)):
        where = shard_host_pb2.UnknownId(group=group, entry=entry, bag=bag)
        changed = shard_host_pb2.LookupResponse(refused=where)
        words = f"refuses an id of group {group}, entry {entry}, bag {bag}, where no raw"
        with pytest.raises(InternalError, match=words):
            read(changed.SerializeToString(), groups)


@pytest.mark.parametrize(
    "bad", [*NO_ANSWERS, b"\x08\1", b"\x1d1234", b"\x22\0\x22\0", b"\x1a\0\x1a\0"]
)
def test_bytes_that_are_no_answer_are_refused(bad: bytes) -> None:
    with pytest.raises(InternalError, match="not a LookupResponse"):
        read(bad, [_GROUP])


def test_changed_bytes_are_read_or_refused() -> None:
    message = answer_of([_GROUP, _GROUP], [[True, False], [True, True]]).SerializeToString()
    read(message, [_GROUP, _GROUP])
    refused = 0
    for changed in mutations(message, 3, 3000):
        try:
            found = read(changed, [_GROUP, _GROUP])
        except InternalError:
            refused += 1
            continue
        assert [one.shape for one in found] == [(3, _GROUP.stored.columns)] * 2  # type: ignore[union-attr]
    assert refused > 100
