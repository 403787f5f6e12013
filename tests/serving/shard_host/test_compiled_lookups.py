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

from kernels.bags import Bags
from kernels.errors import LostMemoryError
from kernels.ids.partition import partition_hashes
from serving.abi.transport import AccessBit
from serving.host.listeners import listen_on
from serving.protocol.lookups.compiled_reader import read_answer
from serving.protocol.lookups.lookup_messages import LOOKUP_PATH, read_lookup, write_lookup
from serving.protocol.lookups.unknown_messages import read_unknown
from serving.protocol.lookups.version_key import VersionKey
from serving.shard_host.compiled_lookups import CompiledLookups
from serving.status import Status, StatusCode
from serving.transport.client_settings import ClientLimits, Endpoint
from serving.transport.events import EventReader
from serving.transport.http2_client import Answer, Http2Client, OutgoingCall
from serving.transport.http2_server import Http2Server
from serving.transport.library import transport_refusal
from serving.transport.limits import Method
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.model_share import ModelShare
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.lookups.raw_ids import UnknownIdError
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.share_lookups import LookedUpPieces, ShareLookups
from sharded_infer.v1 import shard_host_pb2
from tests.serving.protocol.lookups.test_compiled_reader import stored_pieces
from tests.serving.protocol.mutations import mutations
from tests.serving.transport.test_http2_server import LIMITS
from tests.support.model_shares import open_share
from tests.support.raw_cluster import MAPS, publish_raw_cluster, publish_raw_parts

pytestmark = [
    pytest.mark.skipif(transport_refusal() is not None, reason=str(transport_refusal())),
    pytest.mark.usefixtures("poisoned_memory"),
]
KEY = VersionKey("ranker", 7, 2**64 - 3)
# What is left to Python.
LEFT = Status(StatusCode.UNIMPLEMENTED, "left")
Ask = Callable[[Sequence[bytes]], list[Answer]]


@contextmanager
def asking(compiled: CompiledLookups) -> Iterator[Ask]:
    """Messages to a server whose lookups compiled code answers, two threads at a time."""
    listeners = listen_on("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    methods = [Method(LOOKUP_PATH, AccessBit.OPEN, with_headers=False)]
    server = Http2Server(listeners, methods, LIMITS, tls=None)

    def serve() -> None:
        reader = EventReader(
            lambda events, held, _, ms: compiled.fetch(server.address, 0, events, held, ms)
        )
        while (events := reader.fetch(1000)) is not None:
            for event in events:
                server.finish(event.call, LEFT)

    def ask(messages: Sequence[bytes]) -> list[Answer]:
        client.start([OutgoingCall(0, message, 60.0) for message in messages])
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


@pytest.fixture(scope="module", params=[TableMemory.MAP, TableMemory.HUGE])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelShare:
    """One host with every table, whole or in columns."""
    version = publish_raw_cluster(tmp_path_factory.mktemp("raw"), 1, ("whole", "columns"), seed=2)
    return open_share(version, 0, memory=request.param)


def random_group(generator: np.random.Generator, share: ModelShare, *, known: bool) -> PieceBags:
    """Raw ids of some pieces, or rows of any; `known`: tables refuse no unknown ones."""
    lookups, raw = share.lookups, bool(generator.integers(3))
    pieces = [n for n, one in enumerate(lookups.id_maps) if one is not None or not raw]
    numbers = generator.choice(pieces, int(generator.integers(1, 5)))
    bags, most = int(generator.integers(1, 7)), int(generator.choice([1, 3, 60]))
    lengths = generator.integers(0, most + 1, (len(numbers), bags))
    ids = []
    for number, count in zip(numbers.tolist(), lengths.sum(1).tolist(), strict=True):
        id_map = lookups.id_maps[number]
        if not raw or id_map is None:
            ids.append(generator.integers(0, lookups.pieces[number].tables.rows[0], count))
            continue
        some = [*MAPS[id_map.table.name]][: int(generator.choice([2, 100]))]
        is_known = generator.random() < 0.5 or (known and id_map.unknown == "error")
        strange = [] if is_known else (3, 340, 999, 1001, -7, 2**62, -(2**62), 77777)
        ids.append(generator.choice(np.array([*some, *strange], np.int64), count))
    values = torch.from_numpy(np.concatenate(ids))
    weights = torch.rand(len(values)) if generator.random() < 0.3 else None
    group = PieceBags.of(numbers, Bags(values, torch.from_numpy(lengths), weights))
    return replace(group, sum_bytes=int(generator.choice([2, 4])), raw=raw)


def random_groups(
    generator: np.random.Generator, share: ModelShare, *, known: bool = True
) -> list[PieceBags]:
    groups = [random_group(generator, share, known=known) for _ in range(generator.integers(1, 4))]
    entries = np.cumsum([len(group.pieces) for group in groups])
    return [g for g, end in zip(groups, entries, strict=True) if end <= share.lookups.most_entries]


def check_unknown(message: memoryview, groups: Sequence[PieceBags], found: LookedUpPieces) -> None:
    came, expected = (
        [[] if counts is None or not counts.any() else counts.tolist() for counts in every]
        for every in (read_unknown(message, groups), found.unknown)
    )
    assert came == expected


def rounded(sums: torch.Tensor, width: int) -> torch.Tensor:
    return sums.bfloat16().float() if width == 2 else sums


def with_rows(share: ShareLookups, group: PieceBags) -> PieceBags:
    """The group as requested by a front that reads rows."""
    tables = [share.pieces[number].tables for number in group.pieces.tolist()]
    pieces = [(table.row_format, table.dims[0], table.means[0]) for table in tables]
    return replace(group, stored=stored_pieces(pieces))


def check_sums(answer: Answer, groups: Sequence[PieceBags], expected: LookedUpPieces) -> None:
    assert answer.status is None
    found = read_answer(answer.message, groups)
    for one, pooled, group in zip(found, expected.pooled, groups, strict=True):
        np.testing.assert_array_equal(one.pooled.numpy(), rounded(pooled, group.sum_bytes).numpy())
    check_unknown(answer.message, groups, expected)


def test_answers_have_the_bits_and_counts_of_the_reference(opened: ModelShare) -> None:
    generator = np.random.default_rng(0)
    compiled = CompiledLookups()
    assert compiled.add(KEY, opened.lookups) is not None
    asked = [groups for _ in range(300) if (groups := random_groups(generator, opened))]
    messages = [bytes(write_lookup(KEY, groups)) for groups in asked]
    with_unknown = rows = row_bytes = 0
    with asking(compiled) as ask:
        answers = ask(messages)
    for answer, groups in zip(answers, asked, strict=True):
        expected = opened.lookups.look_up(groups)
        check_sums(answer, groups, expected)
        with_unknown += any(counts is not None for counts in expected.unknown)
        rows += sum(step[1] for step in expected.work)
        row_bytes += sum(step[2] for step in expected.work)
    assert 50 < with_unknown < 250
    counts = compiled.counts()
    assert counts.lookups == len(messages) == sum(counts.buckets)
    assert (counts.rows, counts.row_bytes) == (rows, row_bytes)
    assert counts.received_bytes == sum(map(len, messages))
    assert counts.sent_bytes == sum(len(answer.message) for answer in answers)
    assert counts.seconds > 0.0


def test_rows_answer_where_they_have_fewer_bytes_and_every_raw_id_has_one(
    opened: ModelShare,
) -> None:
    generator = np.random.default_rng(1)
    compiled = CompiledLookups()
    compiled.add(KEY, opened.lookups)
    drawn = [groups for _ in range(300) if (groups := random_groups(generator, opened))]
    asked = [[with_rows(opened.lookups, group) for group in groups] for groups in drawn]
    messages = [bytes(write_lookup(KEY, groups, rows=True)) for groups in asked]
    plain = [bytes(write_lookup(KEY, groups)) for groups in asked]
    by_rows = left_out = 0
    with asking(compiled) as ask:
        for answer, sums, groups in zip(ask(messages), ask(plain), asked, strict=True):
            assert answer.status is None
            # A filler may have two bytes more.
            assert len(answer.message) <= len(sums.message) + 2 * len(groups)
            expected = opened.lookups.look_up(groups)
            came = iter(shard_host_pb2.LookupResponse.FromString(bytes(answer.message)).row_counts)
            found = read_answer(answer.message, groups)
            for one, pooled, group, unknown in zip(
                found, expected.pooled, groups, expected.unknown, strict=True
            ):
                columns = group.stored.pieces[:, 0].tolist()
                pairs = zip(one.pooled.split(columns, 1), pooled.split(columns, 1), strict=True)
                for entry, (part, exact) in enumerate(pairs):
                    has_rows = next(came, 0) > 0
                    wanted = exact if has_rows else rounded(exact, group.sum_bytes)
                    np.testing.assert_array_equal(part.numpy(), wanted.numpy())
                    id_map = opened.lookups.id_maps[int(group.pieces[entry])]
                    absent = unknown is not None and unknown[entry].any()
                    if group.raw and id_map.unknown == "zero" and absent:
                        left_out += 1
                        assert not has_rows
                    by_rows += has_rows
            check_unknown(answer.message, groups, expected)
    assert by_rows > 50 and left_out > 20


def test_what_the_reference_refuses_is_left_to_it(opened: ModelShare) -> None:
    generator = np.random.default_rng(2)
    compiled = CompiledLookups()
    compiled.add(KEY, opened.lookups)
    refused = unknown = 0
    messages: list[bytes] = []
    while len(messages) < 1000:
        message = bytes(write_lookup(KEY, random_groups(generator, opened, known=False)))
        messages += [message, *mutations(message, len(messages), 2)]
    with asking(compiled) as ask:
        for answer, message in zip(ask(messages), messages, strict=True):
            try:
                key, _, groups = read_lookup(message)
                expected = opened.lookups.look_up(groups)
            except (RequestError, RequestTooLargeError) as error:
                refused += 1
                unknown += isinstance(error, UnknownIdError)
                assert answer.status == LEFT
                continue
            if key == KEY and answer.status is None:
                check_sums(answer, groups, expected)
            else:
                assert answer.status == LEFT
    assert refused > 300 and unknown > 30


def test_other_versions_and_shares_are_left_to_python(opened: ModelShare) -> None:
    compiled = CompiledLookups()
    compiled.add(KEY, opened.lookups, 5)
    [group] = random_groups(np.random.default_rng(2), opened)[:1]
    keys = (KEY._replace(model="rank"), KEY._replace(version=8), KEY._replace(manifest=3))
    asked = [(KEY, 0), (KEY, 5), (KEY, 6), *((key, 5) for key in keys)]
    with asking(compiled) as ask:
        answers = ask([bytes(write_lookup(key, [group], share)) for key, share in asked])
    assert [answer.status for answer in answers] == [None, None, *[LEFT] * 4]


def test_a_version_goes_while_it_is_asked_for(opened: ModelShare) -> None:
    compiled = CompiledLookups()
    message = bytes(write_lookup(KEY, random_groups(np.random.default_rng(3), opened)))
    with asking(compiled) as ask:
        for _ in range(20):
            added = compiled.add(KEY, opened.lookups)
            assert added is not None
            with ThreadPoolExecutor(1) as asker:
                asked = asker.submit(ask, [message] * 100)
                compiled.drop(added)
                answers = asked.result()
            assert len(answers) == 100
            assert {answer.status for answer in answers} <= {None, LEFT}
            assert ask([message])[0].status == LEFT


def raw_group(piece: int, ids: np.ndarray) -> PieceBags:
    lengths = np.full((1, -(-len(ids) // 2)), 2)
    lengths[0, -1] -= len(ids) % 2
    bags = Bags(torch.from_numpy(ids), torch.from_numpy(lengths))
    return replace(PieceBags.of(np.array([piece]), bags), raw=True)


def test_a_host_of_parts_answers_for_their_ids_alone(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    share = open_share(publish_raw_parts(tmp_path / "models", 2), 0)
    lookups, compiled = share.lookups, CompiledLookups()
    compiled.add(KEY, lookups)
    own: list[PieceBags] = []
    others: list[PieceBags] = []
    for (placed, _), id_map, piece in zip(
        share.rows.pieces.items(), lookups.id_maps, range(len(lookups.pieces)), strict=True
    ):
        if id_map is None or id_map.partition is None:
            continue
        drawn = generator.integers(-(2**63), 2**63 - 1, 60)
        ids = np.array([*MAPS[placed.table.name]])
        every = ids if id_map.unknown == "error" else np.concatenate([ids, drawn])
        ends = id_map.partition.hashes_of_rows(
            placed.first_row, placed.first_row + placed.rows, id_map.table.rows
        )
        assert ends is not None
        hashes = partition_hashes(every)
        is_own = (ends[0] <= hashes) & (hashes <= ends[1])
        own.append(raw_group(piece, every[is_own]))
        others.append(raw_group(piece, ids[~is_own[: len(ids)]]))
    assert len(own) > 5
    messages = [bytes(write_lookup(KEY, [group])) for group in (*own, *others)]
    with asking(compiled) as ask:
        answers = ask(messages)
    unknown = 0
    for answer, group in zip(answers[: len(own)], own, strict=True):
        expected = lookups.look_up([group])
        [found] = read_answer(answer.message, [group])
        np.testing.assert_array_equal(found.pooled.numpy(), expected.pooled[0].numpy())
        check_unknown(answer.message, [group], expected)
        unknown += expected.unknown[0] is not None
    assert unknown
    for answer, group in zip(answers[len(own) :], others, strict=True):
        assert answer.status == LEFT
        with pytest.raises(
            RequestError, match=r"has row \d+, expected one of its piece, \d+ to \d+"
        ):
            lookups.look_up([group])


@pytest.mark.parametrize("lengths", [[[1, 1]], [[3, 0]], [[2**62, 2**62]], [[-1, 4]]])
def test_raw_ids_that_are_not_those_of_their_bags_are_refused(
    opened: ModelShare, lengths: list[list[int]]
) -> None:
    number = next(n for n, one in enumerate(opened.lookups.id_maps) if one is not None)
    bags = Bags(torch.tensor([5, -1, 2**63 - 1]), torch.tensor(lengths))
    group = replace(PieceBags.of(np.array([number]), bags), raw=True)
    if sum(lengths[0]) == 3 and min(lengths[0]) >= 0:
        group = replace(group, pieces=np.array([number, number]))
    with pytest.raises(RequestError, match="expected lengths"):
        opened.lookups.look_up([group])
    number = next(n for n, one in enumerate(opened.lookups.id_maps) if one is None)
    words = r"group 0, entry 0: raw ids of piece \d of table 'country', expected rows: host 0 has"
    with pytest.raises(RequestError, match=words):
        opened.lookups.look_up([raw_group(number, np.array([1]))])


@pytest.mark.parametrize("kind", ["table", "id map"])
def test_a_file_that_has_lost_bytes_is_left_to_python(tmp_path: Path, kind: str) -> None:
    version = publish_raw_cluster(tmp_path, 1, ("whole",))
    share = open_share(version, 0, memory=TableMemory.MAP)
    compiled = CompiledLookups()
    compiled.add(KEY, share.lookups)
    number = next(n for n, one in enumerate(share.lookups.id_maps) if one is not None)
    table = share.lookups.id_maps[number].table.name
    ids = torch.tensor([*MAPS[table]])
    bags = Bags(ids, torch.tensor([[len(ids)]]))
    group = replace(PieceBags.of(np.array([number]), bags), raw=True)
    message = bytes(write_lookup(KEY, [group]))
    manifest = open_artifact(version).manifest
    files = manifest.table_files if kind == "table" else [manifest.id_maps[table]]
    with asking(compiled) as ask:
        assert ask([message])[0].status is None
        for name in files:
            with (version / name).open("r+b") as file:
                file.truncate(1)
        assert ask([message])[0].status == LEFT
    with pytest.raises(LostMemoryError):
        share.lookups.look_up([group])
