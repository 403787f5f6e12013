"""Lookups in compiled code: the bits of the reference, and nothing that it refuses."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels.backends.native import kernel_for_compiled_code
from kernels.bags import Bags
from kernels.errors import LostMemoryError
from serving.host.listeners import listen_on
from serving.protocol.lookups.compiled_reader import read_answer
from serving.protocol.lookups.lookup_messages import LOOKUP_PATH, read_lookup, write_lookup
from serving.protocol.lookups.sum_messages import read_sums, write_sums
from serving.protocol.lookups.version_key import VersionKey
from serving.shard_host.compiled_lookups import CompiledLookups
from serving.status import Status, StatusCode
from serving.transport.client_settings import ClientLimits, Endpoint
from serving.transport.events import EventReader
from serving.transport.http2_client import Answer, Http2Client, OutgoingCall
from serving.transport.http2_server import Http2Server
from serving.transport.library import transport_refusal
from serving.transport.limits import AccessBit, Method
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.lookups.placement import hold, share_of
from sharded_infer.lookups.shard_hosts import PieceBags, StoredPieces
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.v1 import shard_host_pb2
from tests.serving.transport.test_http2_server import LIMITS
from tests.sharded_infer.lookups.test_plan_lookups import SPEC, encoded_tables, stored_pieces
from tests.sharded_infer.lookups.test_share_lookups import PLACED

pytestmark = [
    pytest.mark.skipif(transport_refusal() is not None, reason=str(transport_refusal())),
    pytest.mark.usefixtures("poisoned_memory"),
]
KEY = VersionKey("ranker", 7, 2**64 - 3)
SECONDS = 60.0
# All pieces of one are columns, which are copied; the other has a table as it is mapped.
HOST, MAPPED_HOST = 4, 7
PIECES = share_of(PLACED, HOST)
# What is left to Python.
LEFT = Status(StatusCode.UNIMPLEMENTED, "left")
Ask = Callable[[Sequence[bytes]], list[Answer]]


@contextmanager
def asking(compiled: CompiledLookups) -> Iterator[Ask]:
    """Messages to a server whose lookups compiled code answers, two threads at a time."""
    listeners = listen_on("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    methods = [Method(LOOKUP_PATH, False, AccessBit.OPEN, with_headers=False)]
    server = Http2Server(listeners, methods, LIMITS, tls=None)

    def serve() -> None:
        reader = EventReader(
            lambda events, held, _, ms: compiled.fetch(server.address, 0, events, held, ms)
        )
        while (events := reader.fetch(1000)) is not None:
            for event in events:
                server.finish(event.call, LEFT)

    def ask(messages: Sequence[bytes]) -> list[Answer]:
        client.start([OutgoingCall(0, message, SECONDS) for message in messages])
        return client.finish()

    threads = [threading.Thread(target=serve) for _ in range(2)]
    for thread in threads:
        thread.start()
    limits = ClientLimits(answer_bytes=2**24)
    try:
        with Http2Client([Endpoint(f"127.0.0.1:{port}", "host")], [LOOKUP_PATH], limits) as client:
            yield ask
    finally:
        server.stop()
        for thread in threads:
            thread.join()


@pytest.fixture
def share(tmp_path: Path) -> ShareLookups:
    return share_on(tmp_path, HOST)


def share_on(folder: Path, host: int) -> ShareLookups:
    held = hold(share_of(PLACED, host), stored_pieces(folder, encoded_tables()))
    return ShareLookups(SPEC, PLACED, held, host, max_answer_bytes=2**20)


def random_group(generator: np.random.Generator) -> PieceBags:
    entries = int(generator.integers(1, len(PIECES) + 1))
    numbers = generator.choice(len(PIECES), entries)
    bags = int(generator.integers(1, 9))
    most = int(generator.choice([1, 3, 300]))
    lengths = generator.integers(0, most + 1, (entries, bags))
    ids = [
        generator.integers(0, PIECES[number].rows, count)
        for number, count in zip(numbers, lengths.sum(1), strict=True)
    ]
    values = torch.from_numpy(np.concatenate(ids).astype(np.int64))
    weights = torch.rand(len(values)) if generator.random() < 0.3 else None
    sum_bytes = int(generator.choice([2, 4]))
    group = PieceBags.of(numbers, Bags(values, torch.from_numpy(lengths), weights))
    return replace(group, sum_bytes=sum_bytes)


def random_groups(generator: np.random.Generator, share: ShareLookups) -> list[PieceBags]:
    groups: list[PieceBags] = []
    left = share.most_entries
    for _ in range(int(generator.integers(1, 4))):
        group = random_group(generator)
        left -= len(group.pieces)
        if left >= 0:
            groups.append(group)
    return groups or [PieceBags.of(np.array([0]), Bags(torch.tensor([0]), torch.tensor([[1]])))]


def expected_of(share: ShareLookups, message: bytes) -> list[torch.Tensor] | None:
    """The reference's answer; None if it refuses."""
    try:
        key, _, groups = read_lookup(message)
        return None if key != KEY else share.look_up(groups).pooled
    except (RequestError, RequestTooLargeError):
        return None


def check(answer: Answer, message: bytes, expected: Sequence[torch.Tensor]) -> None:
    assert answer.status is None
    widths = [group.sum_bytes for group in read_lookup(message)[2]]
    found = read_sums(answer.message, [len(one) for one in expected], widths)
    for one, other, width in zip(found, expected, widths, strict=True):
        np.testing.assert_array_equal(one, rounded(other, width).numpy())


def rounded(sums: torch.Tensor, width: int) -> torch.Tensor:
    return sums.bfloat16().float() if width == 2 else sums


def test_answers_have_the_bits_of_the_reference(share: ShareLookups) -> None:
    generator = np.random.default_rng(0)
    compiled = CompiledLookups()
    assert compiled.add(KEY, share) is not None
    messages = [bytes(write_lookup(KEY, random_groups(generator, share))) for _ in range(400)]
    with asking(compiled) as ask:
        answers = ask(messages)
        for answer, message in zip(answers, messages, strict=True):
            expected = expected_of(share, message)
            assert expected is not None
            check(answer, message, expected)
    counts = compiled.counts()
    lookups = [read_lookup(message)[2] for message in messages]
    assert counts.lookups == len(messages) == sum(counts.buckets)
    assert counts.rows == sum(len(group.bags.values) for groups in lookups for group in groups)
    row_bytes = sum(one[2] for groups in lookups for one in share.look_up(groups).work)
    assert counts.row_bytes == row_bytes
    assert counts.received_bytes == sum(map(len, messages))
    assert counts.sent_bytes == sum(len(answer.message) for answer in answers)
    assert counts.seconds > 0.0


def with_rows(share: ShareLookups, group: PieceBags) -> PieceBags:
    """The group as requested by a front that reads rows."""
    kernel = kernel_for_compiled_code()
    assert kernel is not None
    tables = [share.pieces[number].tables for number in group.pieces.tolist()]
    stored = [
        (t.dims[0], t.row_format.row_bytes(t.dims[0]), kernel.formats[t.row_format], t.means[0])
        for t in tables
    ]
    columns = sum(table.dims[0] for table in tables)
    return replace(group, stored=StoredPieces(np.array(stored, np.int64), columns))


def rows_of(share: ShareLookups, group: PieceBags) -> list[bytes | None]:
    """Distinct rows of each entry, as they first come; None where its sums have no more bytes."""
    counts = group.bags.lengths.sum(1).tolist()
    found: list[bytes | None] = []
    for number, ids in zip(group.pieces.tolist(), group.bags.values.split(counts), strict=True):
        tables = share.pieces[number].tables
        row_bytes = tables.row_format.row_bytes(tables.dims[0])
        memory = tables.memory[tables.byte_offsets[0] :][: tables.rows[0] * row_bytes]
        distinct = torch.tensor(list(dict.fromkeys(ids.tolist())), dtype=torch.int64)
        rows = memory.view(-1, row_bytes)[distinct].numpy().tobytes()
        sum_bytes = group.sum_bytes * group.bags.lengths.shape[1] * tables.dims[0]
        found.append(rows if len(rows) < sum_bytes else None)
    return found


def test_rows_answer_where_they_have_fewer_bytes(share: ShareLookups) -> None:
    generator = np.random.default_rng(4)
    compiled = CompiledLookups()
    compiled.add(KEY, share)
    asked = [
        [with_rows(share, group) for group in random_groups(generator, share)] for _ in range(400)
    ]
    messages = [bytes(write_lookup(KEY, groups, rows=True)) for groups in asked]
    plain = [bytes(write_lookup(KEY, groups)) for groups in asked]
    read_rows = by_sums = 0
    with asking(compiled) as ask:
        answers = ask(messages)
        rows_before = compiled.counts().rows
        others = ask(plain)
    for answer, other, groups in zip(answers, others, asked, strict=True):
        assert answer.status is None and other.status is None
        # A filler may have two bytes more.
        assert len(answer.message) <= len(other.message) + 2 * len(groups)
        came = shard_host_pb2.LookupResponse.FromString(bytes(answer.message))
        wanted = [rows for group in groups for rows in rows_of(share, group)]
        found = [one.pooled for one in read_answer(answer.message, groups)]
        for one, exact, group in zip(found, share.look_up(groups).pooled, groups, strict=True):
            by_rows = [came.row_counts != [] and rows is not None for rows in rows_of(share, group)]
            parts = exact.split([int(n) for n in group.stored.pieces[:, 0]], 1)
            expected = [
                part if exactly else rounded(part, group.sum_bytes)
                for part, exactly in zip(parts, by_rows, strict=True)
            ]
            np.testing.assert_array_equal(one.numpy(), torch.cat(expected, 1).numpy())
        if came.row_counts:
            assert [count > 0 for count in came.row_counts] == [rows is not None for rows in wanted]
            assert came.rows == b"".join(rows or b"" for rows in wanted)
        else:
            assert len(answer.message) == len(other.message)
            by_sums += 1
        ids = [count for group in groups for count in group.bags.lengths.sum(1).tolist()]
        counts = list(came.row_counts) or [0] * len(ids)
        read_rows += sum(n - 1 if n else own for n, own in zip(counts, ids, strict=True))
    assert rows_before == read_rows
    assert 10 < by_sums < 390


def test_hosts_that_know_no_rows_answer_with_sums(share: ShareLookups) -> None:
    generator = np.random.default_rng(5)
    for _ in range(50):
        asked = [with_rows(share, group) for group in random_groups(generator, share)]
        _, _, groups = read_lookup(bytes(write_lookup(KEY, asked, rows=True)))
        expected = share.look_up(groups).pooled
        widths = [group.sum_bytes for group in groups]
        answer = write_sums([pooled.numpy() for pooled in expected], widths)
        for one, width, found in zip(
            expected, widths, read_answer(memoryview(answer), asked), strict=True
        ):
            np.testing.assert_array_equal(found.pooled.numpy(), rounded(one, width).numpy())


def test_what_the_reference_refuses_is_left_to_it(share: ShareLookups) -> None:
    generator = np.random.default_rng(1)
    compiled = CompiledLookups()
    compiled.add(KEY, share)
    refused = 0
    with asking(compiled) as ask:
        for _ in range(40):
            messages = []
            for _ in range(50):
                message = bytearray(write_lookup(KEY, random_groups(generator, share)))
                for place in generator.integers(0, len(message), int(generator.integers(1, 4))):
                    message[place] = generator.integers(0, 256)
                messages.append(bytes(message[: generator.integers(1, len(message) + 40)]))
            for answer, message in zip(ask(messages), messages, strict=True):
                expected = expected_of(share, message)
                if expected is None:
                    refused += 1
                    assert answer.status == LEFT
                elif answer.status is None:
                    check(answer, message, expected)
                else:
                    assert answer.status == LEFT
    assert refused > 500


@pytest.mark.parametrize(
    "key", [KEY._replace(model="rank"), KEY._replace(version=8), KEY._replace(manifest=3)]
)
def test_other_versions_are_left_to_python(share: ShareLookups, key: VersionKey) -> None:
    compiled = CompiledLookups()
    compiled.add(KEY, share)
    group = random_group(np.random.default_rng(2))
    with asking(compiled) as ask:
        [good, other] = ask([bytes(write_lookup(one, [group])) for one in (KEY, key)])
    assert good.status is None
    assert other.status == LEFT


def test_other_shares_are_left_to_python(share: ShareLookups) -> None:
    compiled = CompiledLookups()
    compiled.add(KEY, share, 5)
    group = random_group(np.random.default_rng(2))
    with asking(compiled) as ask:
        answers = ask([bytes(write_lookup(KEY, [group], number)) for number in (0, 5, 6)])
    assert [answer.status for answer in answers] == [None, None, LEFT]


def test_a_version_goes_while_it_is_asked_for(share: ShareLookups) -> None:
    compiled = CompiledLookups()
    message = bytes(write_lookup(KEY, [random_group(np.random.default_rng(3))]))
    with asking(compiled) as ask:
        for _ in range(20):
            added = compiled.add(KEY, share)
            assert added is not None
            with ThreadPoolExecutor(1) as asker:
                asked = asker.submit(ask, [message] * 100)
                compiled.drop(added)
                answers = asked.result()
            assert len(answers) == 100
            assert {answer.status for answer in answers} <= {None, LEFT}
            assert ask([message])[0].status == LEFT


def test_a_file_that_has_lost_bytes_is_left_to_python(tmp_path: Path) -> None:
    share = share_on(tmp_path, MAPPED_HOST)
    compiled = CompiledLookups()
    compiled.add(KEY, share)
    pieces = share_of(PLACED, MAPPED_HOST)
    assert any(piece.holds_all_columns for piece in pieces)
    ids = torch.tensor([piece.rows - 1 for piece in pieces])
    lengths = torch.ones(len(pieces), 1, dtype=torch.int64)
    group = PieceBags.of(np.arange(len(pieces)), Bags(ids, lengths))
    message = bytes(write_lookup(KEY, [group]))
    with asking(compiled) as ask:
        assert ask([message])[0].status is None
        for file in tmp_path.rglob("tables/*"):
            with file.open("r+b") as opened:
                opened.truncate(1)
        assert ask([message])[0].status == LEFT
    with pytest.raises(LostMemoryError):
        share.look_up([group])
