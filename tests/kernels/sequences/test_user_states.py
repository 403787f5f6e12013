"""The table of users' states against a dict, across threads, forks and deaths of processes."""

import ctypes
import faulthandler
import mmap
import os
import random
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.abi import user_states as abi
from kernels.abi.passes import LAST_ROW, POSITIONS
from kernels.abi.row_steps import StepKind
from kernels.abi.user_states import Keeping
from kernels.errors import InputError
from kernels.sequences.passes import Memory, Operand, Passes, RowStepping, StateColumns
from kernels.sequences.row_step import Columns, RowStep
from kernels.sequences.row_steps import RowSteps
from kernels.sequences.user_states import (
    BLOCK_POSITIONS,
    NAME_BYTES,
    HistoryColumn,
    Prefixes,
    UserStates,
)
from tests.kernels.drawn import numbers

pytestmark = pytest.mark.rest
CHUNK = 2048
# Bytes beside a chunk's own, at most.
BESIDE = 128
# Rows of a block lie across chunks in fp32 and in bf16.
WIDTH = 40
every_dtype = pytest.mark.parametrize("is_bfloat", [False, True])


def owner_of(first: int, second: int = 0) -> abi.StateOwner:
    return abi.StateOwner((first, second))


def name_of(number: int) -> bytes:
    return random.Random(number).randbytes(NAME_BYTES)


def content_of(name: bytes, size: int) -> bytes:
    return random.Random(name).randbytes(size)


def bytes_of(state: Tensor | None) -> bytes | None:
    return None if state is None else state.numpy().tobytes()


def chunks_of(most_bytes: int) -> int:
    """The number of states of one byte that a table has room for."""
    states, owner = UserStates(most_bytes), owner_of(1)
    while not owner.evictions:
        states.write(owner, os.urandom(NAME_BYTES), b"1", 1.0, is_always=True)
    return states.counts(owner)[0]


class Model:
    """A dict beside a table of one shard."""

    def __init__(self, most_bytes: int) -> None:
        self.chunks = chunks_of(most_bytes)
        self.states, self.owners = UserStates(most_bytes), (owner_of(5), owner_of(6))
        self.kept: dict[bytes, tuple[int, bytes]] = {}
        self.refused: set[bytes] = set()
        self.evictions = 0

    @property
    def free(self) -> int:
        return self.chunks - sum(-(-len(state) // CHUNK) for _, state in self.kept.values())

    def read(self, name: bytes) -> bytes | None:
        return bytes_of(self.states.read(name))

    def write(self, by: int, name: bytes, state: bytes, *, is_always: bool) -> None:
        wanted, free = -(-len(state) // CHUNK), self.free
        self.states.write(self.owners[by], name, state, random.random(), is_always=is_always)
        evicted = sum(owner.evictions for owner in self.owners) - self.evictions
        self.evictions += evicted
        is_new = name not in self.kept
        fits = 0 < wanted <= self.chunks
        if not is_new or not fits or wanted <= free:
            assert not evicted
        if evicted:
            gone = [each for each in self.kept if self.read(each) is None]
            assert len(gone) == evicted
            for each in gone:
                del self.kept[each]
        if is_new and self.read(name) is not None:
            assert fits and wanted <= self.free
            assert wanted <= free or is_always or name in self.refused
            self.kept[name] = by, state
        elif is_new and fits:
            assert wanted > free and not is_always
            self.refused.add(name)

    def check(self) -> None:
        for by, owner in enumerate(self.owners):
            own = [len(state) for one, state in self.kept.values() if one == by]
            assert self.states.counts(owner) == (len(own), sum(own))
        for name, (_, state) in self.kept.items():
            assert self.read(name) == state


@pytest.mark.parametrize("most_bytes", [4096, 9_000, 30_000, 200_000])
def test_random_writes_and_reads_are_a_dicts(most_bytes: int) -> None:
    model, draw = Model(most_bytes), random.Random(most_bytes)
    assert model.chunks * CHUNK <= most_bytes <= (model.chunks + 1) * (CHUNK + BESIDE)
    names = [draw.randbytes(NAME_BYTES) for _ in range(3 * model.chunks + 8)]
    sizes = (0, 1, 100, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, most_bytes // 5, most_bytes)
    for turn in range(3000):
        name = draw.choice(names)
        if draw.random() < 0.4:
            kept = model.kept.get(name)
            assert model.read(name) == (None if kept is None else kept[1])
            continue
        state = draw.randbytes(draw.choice([*sizes, draw.randrange(1, most_bytes)]))
        model.write(draw.randrange(2), name, state, is_always=draw.random() < 0.3)
        if turn % 50 == 0:
            model.check()
    model.check()
    assert model.evictions > 100


def test_a_state_of_all_memory_follows_and_precedes_small_ones() -> None:
    model = Model(50_000)
    whole = model.chunks * CHUNK
    for turn in range(50):
        model.write(0, b"%016d" % turn, bytes([turn]) * whole, is_always=True)
        model.check()
        model.write(1, b"more%012d" % turn, bytes(whole + 1), is_always=True)
        assert len(model.kept) == 1
        for small in range(model.chunks):
            model.write(1, b"%03d-%012d" % (small, turn), b"%d" % small, is_always=True)
        model.check()
        assert len(model.kept) == model.chunks and not model.free


def test_names_in_one_bucket_differ_by_either_word() -> None:
    states, owner, chunks = UserStates(200_000), owner_of(1), chunks_of(200_000)
    names = [
        struct.pack("<2Q", first, second * chunks) for first in range(9) for second in range(10)
    ]
    for name in names[::2]:
        states.write(owner, name, name, 1.0)
    assert [bytes_of(states.read(name)) for name in names[::2]] == names[::2]
    assert all(states.read(name) is None for name in names[1::2])


def test_states_of_several_shards_keep_their_bytes() -> None:
    # Pages that no state uses take no memory.
    states, owner = UserStates(5 * 16 << 20), owner_of(1)
    written = {name_of(at): content_of(name_of(at), at * 1000 + 1) for at in range(300)}
    for name, state in written.items():
        states.write(owner, name, state, 1.0)
    assert {name: bytes_of(states.read(name)) for name in written} == written
    assert states.counts(owner) == (300, sum(map(len, written.values())))
    assert states.counts(owner_of(2)) == (0, 0)
    # Every shard's last byte is its own.
    larger = bytes(15 << 20)
    for number in range(40):
        states.write(owner, name_of(1000 + number), larger, 1.0, is_always=True)
    count, size = states.counts(owner)
    assert size < 5 * 16 << 20 and count >= 5
    assert all(bytes_of(states.read(name)) in (None, state) for name, state in written.items())
    # A state has one shard's room.
    states.write(owner, name_of(2000), bytes(17 << 20), 1.0, is_always=True)
    assert states.read(name_of(2000)) is None and states.counts(owner) == (count, size)


def test_a_first_time_is_refused_while_memory_is_short_alone() -> None:
    model = Model(200_000)
    names = [name_of(number) for number in range(2 * model.chunks)]
    for name in names[: model.chunks]:
        model.write(0, name, b"1", is_always=False)
    assert len(model.kept) == model.chunks
    for name in names[model.chunks :]:
        model.write(0, name, b"2", is_always=False)
        assert model.read(name) is None
        model.write(0, name, b"2", is_always=False)
        assert model.read(name) == b"2"
    assert model.evictions == model.chunks


@pytest.mark.parametrize("kind", ["saved", "read", "found", "small"])
def test_the_least_worth_leaves(kind: str) -> None:
    """Of 8 states drawn of 90, a state that is worth more than each other never leaves."""
    states, owner = UserStates(200_000), owner_of(1)
    seconds = 1e6 if kind == "saved" else 1.0
    history = History((1,), 1)
    [name] = names_of(prefixes_of(states, owner, history), history)
    states.write(owner, name, b"1", seconds)
    states.write(owner, name_of(1), bytes(30 * CHUNK), 1.0)
    for number in range(2, 2000):
        states.write(owner, name_of(number), b"1", 1.0, is_always=True)
        if kind == "read":
            assert states.read(name) is not None
        if kind == "found":
            assert known_by(prefixes_of(states, owner, history))
        if kind == "small":
            states.read(name_of(1))
    assert owner.evictions > 1800
    if kind == "small":
        assert states.read(name_of(1)) is None
    else:
        assert states.read(name) is not None


@pytest.mark.parametrize("are_found", [False, True])
def test_later_blocks_leave_first(are_found: bool) -> None:
    """Of 8 states drawn of 165, of which others are worth more than 100 blocks of one history."""
    states, owner = UserStates(1 << 20), owner_of(1)
    runs, history = Runs(states), History(range(100), 1)
    prefix = runs.prefix(owner, history)
    names = names_of(prefix, history)
    if are_found:
        for name in names:
            states.write(owner, name, bytes(5000), 1.0)
        assert known_by(runs.prefix(owner, history)) == 1600
    else:
        assert runs.run(prefix, history)
    for number in range(115):
        states.write(owner, name_of(number), bytes(5000), 1e9, is_always=True)
    left = [states.read(name) is not None for name in names]
    assert sum(left) < 80 and sum(left[:50]) > sum(left[50:]) + 10


@pytest.mark.parametrize("most_bytes", [-1, 0, 1, 64, 2048])
def test_too_little_memory_for_one_state_is_refused(most_bytes: int) -> None:
    with pytest.raises(InputError, match=f"room for one state, got {most_bytes} bytes"):
        UserStates(most_bytes)


def test_resident_pages_are_mapped_before_they_are_written() -> None:
    def shared_pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[2])

    before, size = shared_pages(), 64 << 20
    states = UserStates(size, is_resident=True)
    assert shared_pages() - before >= size // mmap.PAGESIZE
    assert states.counts(owner_of(1)) == (0, 0)


def test_names_are_keyed_hashes_of_owners_and_positions() -> None:
    """The values are OpenSSL's (`openssl mac SIPHASH`, 16 bytes) for the key 00 01 .. 0f."""
    memory = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    key = bytes(range(16))
    assert abi.states_create(address, len(memory), key) == 0
    owner = abi.StateOwner.from_buffer_copy(key + bytes(8))
    inputs = np.arange(32, dtype=np.int64)
    expected = "7d1843d992ad8c64c8075527206c0f20"
    for columns in ([], [inputs], [inputs[:16], inputs[16:]]):
        lengths = [np.array([len(column)]) for column in columns]
        fields = [
            field
            for column, length in zip(columns, lengths, strict=True)
            for field in (column.ctypes.data, length.ctypes.data, len(column) // 16)
        ]
        read, names = (ctypes.c_int64 * len(fields))(*fields), (ctypes.c_uint64 * 2)()
        first, positions, behind = np.array([0]), np.array([16]), np.zeros(2, np.int64)
        blocks = abi.KnownBlocks(count=7)
        search = abi.PrefixSearch(
            address, ctypes.addressof(owner), ctypes.addressof(read), len(columns),
            first.ctypes.data, positions.ctypes.data, 1,
            ctypes.addressof(names), ctypes.addressof(blocks), behind.ctypes.data, 0,
        )  # fmt: skip
        abi.states_find(search)
        assert blocks.count == 0 and behind.tolist() == [0, 16]
        empty = "6ee2a4ca67b054bbfd3315bf85230577"
        assert bytes(names).hex() == (expected if columns else empty)


# Histories.


class History:
    """A history's inputs: ids, pairs of words and rows that they name."""

    def __init__(self, blocks: Sequence[int], rest: int = 0) -> None:
        words = [np.arange(block * 48, block * 48 + 48) for block in blocks]
        ids = [word[:16] for word in words] + [np.full(rest, -1)]
        pairs = [word[16:] for word in words] + [np.full(2 * rest, -7)]
        self.columns = [np.concatenate(ids, dtype=np.int64), np.concatenate(pairs, dtype=np.int64)]
        self.positions = len(blocks) * BLOCK_POSITIONS + rest
        rows = [numbers(BLOCK_POSITIONS, 2, WIDTH, seed=block) for block in blocks]
        self.rows = torch.cat([*rows, numbers(rest, 2, WIDTH, seed=99)])


def sums() -> Passes:
    """Sums of two inputs, of every position, and of the first input's ends."""
    step = RowStep(StepKind.SUM, (Columns(0, 0, WIDTH), Columns(1, 0, WIDTH)))
    steps = RowSteps([WIDTH, WIDTH], [step], [0])
    first, second, out = (Memory(POSITIONS, WIDTH) for _ in range(3))
    ends = Memory(1, WIDTH)
    of_ends = [Operand(first), Operand(first, row=LAST_ROW), Operand(ends)]
    return Passes(
        [first, second],
        [out, ends],
        [
            RowStepping(steps, list(map(Operand, (first, second, out)))),
            RowStepping(steps, of_ends, rows=1),
        ],
        states=[
            StateColumns(out, 0, 7),
            StateColumns(out, 7, WIDTH - 7),
            StateColumns(first, 0, WIDTH),
        ],
    )


class Runs:
    """Calls of the passes, which are right to the bit."""

    def __init__(self, states: UserStates, *, is_bfloat: bool = False) -> None:
        self.states, self._passes, self._is_bfloat = states, sums(), is_bfloat

    def prefix(self, owner: abi.StateOwner, history: History) -> Prefixes:
        return prefixes_of(self.states, owner, history)

    def run(self, prefix: Prefixes, history: History) -> bool:
        behind = history.rows[known_by(prefix) :].unbind(1)
        out, ends = torch.empty(history.positions, WIDTH), torch.empty(WIDTH)
        inputs = [rows.contiguous() for rows in behind]
        if not self._passes(np.array([history.positions]), inputs, [out, ends], prefixes=prefix):
            return False
        first, second = history.rows.unbind(1)
        known = first.clone(), first + second
        for rows in known:
            rows[: known_by(prefix)] = self.stored(rows[: known_by(prefix)])
        assert torch.equal(out, known[1]) and torch.equal(ends, known[0][0] + known[0][-1])
        return True

    def stored(self, rows: Tensor) -> Tensor:
        return rows.bfloat16().float() if self._is_bfloat else rows

    def state(self, history: History, block: int) -> bytes:
        """The bytes of a block, computed from its rows."""
        own = history.rows[block * BLOCK_POSITIONS :][:BLOCK_POSITIONS]
        first, second = own.unbind(1)
        out = first + second
        states = torch.cat([rows.flatten() for rows in (out[:, :7], out[:, 7:], first)])
        return (
            (states.bfloat16() if self._is_bfloat else states).view(torch.uint8).numpy().tobytes()
        )


def prefixes_of(states: UserStates, owner: abi.StateOwner, *histories: History) -> Prefixes:
    positions = np.array([history.positions for history in histories])
    columns = [
        HistoryColumn(np.concatenate(parts), positions * width, width)
        for parts, width in zip(
            zip(*(one.columns for one in histories), strict=True), (1, 2), strict=True
        )
    ]
    return states.prefixes(owner, columns, np.zeros_like(positions), positions)


def known_by(prefix: Prefixes) -> int:
    return int(prefix.positions[0])


def table_of(prefix: Prefixes) -> int:
    return int(prefix.blocks["table"][0])


def names_of(prefix: Prefixes, history: History) -> list[bytes]:
    names = bytes(prefix.held[0])  # type: ignore[call-overload]
    whole = history.positions // BLOCK_POSITIONS
    return [names[at * NAME_BYTES :][:NAME_BYTES] for at in range(whole)]


@every_dtype
@pytest.mark.parametrize("most_bytes", [9_000, 30_000, 200_000, 33 << 20])
def test_random_histories_find_their_longest_kept_beginning(
    most_bytes: int, is_bfloat: bool
) -> None:
    states, draw = UserStates(most_bytes, is_bfloat=is_bfloat), random.Random(most_bytes)
    runs = Runs(states, is_bfloat=is_bfloat)
    owners = owner_of(1, 2), owner_of(1, 3), owner_of(2, 2)
    kept: set[tuple[int, ...]] = set()
    continued = 0
    for _ in range(600):
        by = draw.randrange(len(owners))
        blocks = tuple(draw.randrange(3) for _ in range(draw.randrange(5)))
        history = History(blocks, draw.randrange(0 if blocks else 1, BLOCK_POSITIONS))
        prefix = runs.prefix(owners[by], history)
        names = names_of(prefix, history)
        most = (history.positions - 1) // BLOCK_POSITIONS
        known = known_by(prefix) // BLOCK_POSITIONS
        assert known_by(prefix) % BLOCK_POSITIONS == 0 and known <= most
        if most_bytes > 1 << 20:
            beginnings = [(by, *blocks[: at + 1]) in kept for at in range(most)]
            assert known == [*beginnings, False].index(False)
            kept |= {(by, *blocks[: at + 1]) for at in range(len(blocks))}
        else:
            # A table of one shard, which reads blocks as whole states.
            read = [states.read(name) is not None for name in names[:most]]
            assert known == [*read, False].index(False)
        prefix.blocks["keeping"] = draw.choice([Keeping.ALL, Keeping.WORTHWHILE])
        if most_bytes > 1 << 20:
            prefix.blocks["keeping"] = Keeping.ALL
        assert runs.run(prefix, history)
        continued += known
        if most_bytes < 1 << 20:
            for at, name in enumerate(names):
                # Those behind rounded ones are as exact: a position's rows depend on it alone.
                assert bytes_of(states.read(name)) in (None, runs.state(history, at))
    assert continued > 50 or most_bytes < 200_000
    if most_bytes > 1 << 20:
        total = sum(states.counts(owner)[0] for owner in (owners[0], owners[2]))
        assert total == len(kept)


@every_dtype
def test_histories_of_one_call_are_found_and_computed_apart(is_bfloat: bool) -> None:
    states, draw = UserStates(33 << 20, is_bfloat=is_bfloat), random.Random(8)
    runs, owner, passes = Runs(states, is_bfloat=is_bfloat), owner_of(1), sums()
    continued = 0
    for _ in range(60):
        histories = [
            History([draw.randrange(3) for _ in range(draw.randrange(5))], draw.randrange(1, 16))
            for _ in range(draw.randrange(1, 6))
        ]
        alone = [runs.prefix(owner, history) for history in histories]
        together = prefixes_of(states, owner, *histories)
        known = together.positions.tolist()
        assert known == [known_by(prefix) for prefix in alone]
        assert (together.known, together.hits) == (sum(known), sum(map(bool, known)))
        positions = np.array([history.positions for history in histories])
        behind = [one.rows[first:] for one, first in zip(histories, known, strict=True)]
        inputs = [rows.contiguous() for rows in torch.cat(behind).unbind(1)]
        out, ends = torch.empty(int(positions.sum()), WIDTH), torch.empty(len(histories), WIDTH)
        assert passes(positions, inputs, [out, ends], prefixes=together)
        expected = [torch.empty(0, WIDTH)], [torch.empty(0, WIDTH)]
        for history, prefix, first in zip(histories, alone, known, strict=True):
            own = [rows.contiguous() for rows in history.rows[first:].unbind(1)]
            found = torch.empty(history.positions, WIDTH), torch.empty(1, WIDTH)
            assert passes(np.array([history.positions]), own, found, prefixes=prefix)
            for kept, result in zip(expected, found, strict=True):
                kept.append(result)
        assert torch.equal(out, torch.cat(expected[0])) and torch.equal(
            ends, torch.cat(expected[1])
        )
        continued += sum(known)
    assert continued > 1000


def test_positions_before_the_first_used_one_do_not_count() -> None:
    states, owner = UserStates(1 << 20), owner_of(1)
    runs, first, second = Runs(states), History((1, 2), 3), History((3,), 2)
    assert runs.run(runs.prefix(owner, first), first)
    positions, firsts = np.array([first.positions, second.positions]), np.array([5, 0])
    columns = [
        HistoryColumn(
            np.concatenate([np.full(5 * width, 9), before, after]),
            (positions + firsts) * width,
            width,
        )
        for before, after, width in zip(first.columns, second.columns, (1, 2), strict=True)
    ]
    assert states.prefixes(owner, columns, firsts, positions).positions.tolist() == [32, 0]
    assert runs.run(runs.prefix(owner, second), second)
    found = states.prefixes(owner, columns, firsts, positions)
    assert found.behind.tolist() == [[37, 16], [3, 2]]
    assert (found.hits, found.known, found.computed) == (2, 48, 5)


def test_every_input_of_a_position_is_in_its_blocks_name() -> None:
    states, owner = UserStates(200_000), owner_of(1)
    runs, history = Runs(states), History((1, 2, 3), 1)
    assert runs.run(runs.prefix(owner, history), history)
    assert known_by(runs.prefix(owner, history)) == 48
    for column in history.columns:
        width = len(column) // history.positions
        for at in range(len(column)):
            for bit in (0, 31, 63):
                column[at] ^= np.int64(np.uint64(1 << bit).view(np.int64))
                block = at // width // BLOCK_POSITIONS
                expected = min(block, 3) * BLOCK_POSITIONS
                assert known_by(runs.prefix(owner, history)) == expected
                column[at] ^= np.int64(np.uint64(1 << bit).view(np.int64))


def test_a_whole_history_is_never_known() -> None:
    states, owner = UserStates(200_000), owner_of(1)
    runs = Runs(states)
    longest = History((1, 2, 3, 4))
    prefix = runs.prefix(owner, longest)
    assert runs.run(prefix, longest)
    assert states.counts(owner)[0] == 4
    for whole in (1, 2, 3, 4):
        history = History((1, 2, 3, 4)[:whole])
        assert known_by(runs.prefix(owner, history)) == (whole - 1) * BLOCK_POSITIONS
        longer = History((1, 2, 3, 4)[:whole], 1)
        assert known_by(runs.prefix(owner, longer)) == whole * BLOCK_POSITIONS


@every_dtype
def test_an_evicted_block_ends_the_call(is_bfloat: bool) -> None:
    states, owner = UserStates(60_000, is_bfloat=is_bfloat), owner_of(1)
    chunks, runs = chunks_of(60_000), Runs(states, is_bfloat=is_bfloat)
    history = History((1, 2), 3)
    assert runs.run(runs.prefix(owner, history), history)
    prefix = runs.prefix(owner, history)
    assert known_by(prefix) == 32
    states.write(owner, name_of(1), bytes(chunks * CHUNK), 1.0, is_always=True)
    assert not runs.run(prefix, history)
    # Nothing is kept of a call that found no block.
    assert states.counts(owner) == (1, chunks * CHUNK)


def test_keeping_decides_which_blocks_are_kept() -> None:
    states, owner = UserStates(60_000), owner_of(1)
    chunks, runs = chunks_of(60_000), Runs(states)
    states.write(owner, name_of(1), bytes(chunks * CHUNK), 1.0)
    for keeping, expected in (
        (Keeping.NOTHING, [0, 0]),
        (Keeping.WORTHWHILE, [0, 1]),
        (Keeping.ALL, [1, 1]),
    ):
        history = History((10 + keeping.value,), 5)
        known = []
        for _ in range(2):
            prefix = runs.prefix(owner, history)
            prefix.blocks["keeping"] = keeping
            assert runs.run(prefix, history)
            known.append(known_by(runs.prefix(owner, history)) // BLOCK_POSITIONS)
        assert known == expected
        states.write(owner, name_of(2 + keeping.value), bytes(chunks * CHUNK), 1.0, is_always=True)


def test_bf16_states_are_rounded_to_the_nearest_even() -> None:
    states, owner = UserStates(1 << 20, is_bfloat=True), owner_of(1)
    words = np.random.default_rng(1).integers(0, 1 << 32, 64 * 2 * WIDTH, np.uint32)
    special = (
        *(0x7F80_0000, 0xFF80_0000, 0x7F80_0001, 0xFFFF_FFFF, 0x7F7F_FFFF, 0x8000_0000, 1),
        *(0x3F80_8000, 0x3F81_8000, 0x3F80_7FFF, 0x3F80_8001, 0x3F7F_FFFF),
    )
    words[: len(special)] = special
    # Sums with zeros are these numbers.
    words.reshape(64, 2, WIDTH)[:, 1] = 0
    history = History((1, 2, 3), 16)
    history.rows = torch.from_numpy(words.view(np.float32)).view(64, 2, WIDTH)
    passes, empty = sums(), [torch.empty(64, WIDTH), torch.empty(WIDTH)]
    first, second = (rows.contiguous() for rows in history.rows.unbind(1))
    prefix = prefixes_of(states, owner, history)
    assert passes(np.array([64]), [first, second], empty, prefixes=prefix)
    prefix = prefixes_of(states, owner, history)
    assert known_by(prefix) == 48
    out = torch.empty(64, WIDTH)
    assert passes(np.array([64]), [first[48:], second[48:]], [out, empty[1]], prefixes=prefix)
    expected = empty[0][:48].bfloat16().float()
    assert torch.allclose(out[:48], expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(out[:48].isnan(), empty[0][:48].isnan())
    assert torch.equal(out[:48].signbit(), empty[0][:48].signbit())


# Threads and processes.


def hammered(states: UserStates, runs: Runs, seed: int, turns: int) -> None:
    """Random states and histories; what is read is right."""
    owner, draw = owner_of(1), random.Random(seed)
    for _ in range(turns):
        name = name_of(draw.randrange(60))
        # A name's size is its own.
        state = content_of(name, 1 + name[0] * 80)
        states.write(owner, name, state, 1.0, is_always=draw.random() < 0.5)
        assert bytes_of(states.read(name)) in (None, state)
        history = History([draw.randrange(2) for _ in range(3)], 1 + draw.randrange(15))
        prefix = runs.prefix(owner, history)
        prefix.blocks["keeping"] = draw.choice(list(Keeping))
        runs.run(prefix, history)


def checked(states: UserStates, runs: Runs) -> None:
    """All states are right, and the table takes as many as a new one."""
    owner = owner_of(1)
    hammered(states, runs, 0, 5)
    other, chunks = owner_of(77), chunks_of(states.most_bytes)
    for number in range(20 * chunks):
        states.write(other, name_of(-1 - number), b"1", 1e9, is_always=True)
    assert states.counts(other) == (chunks, chunks)
    assert states.counts(owner) == (0, 0)


def test_threads_share_a_table() -> None:
    states = UserStates(100_000)
    runs = Runs(states)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: hammered(states, runs, seed, 300), range(4)))
    checked(states, runs)


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """A child that does the work; exits with 0 if it ends."""
    child = os.fork()
    if not child:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            # OpenMP's threads are not forked.
            torch.set_num_threads(1)
            faulthandler.disable()
            work()
            status = 0
        finally:
            os._exit(status)
    yield child


def status_of(child: int) -> int:
    """The exit status, or the signal that ended it, below 0."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_processes_read_what_others_wrote() -> None:
    states, owner = UserStates(100_000), owner_of(1)
    runs, history, mine = Runs(states), History((1, 2), 2), History((1, 2, 3), 2)
    state = content_of(name_of(1), 5000)

    def work() -> None:
        states.write(owner, name_of(1), state, 1.0)
        assert runs.run(runs.prefix(owner, history), history)

    with forked(work) as child:
        assert status_of(child) == 0
    assert bytes_of(states.read(name_of(1))) == state
    prefix = runs.prefix(owner, mine)
    assert known_by(prefix) == 32 and runs.run(prefix, mine)
    assert states.counts(owner)[0] == 4 and not owner.evictions


def test_processes_share_a_table() -> None:
    states = UserStates(100_000)
    runs = Runs(states)
    with ExitStack() as stack:
        works = [partial(hammered, states, runs, seed, 200) for seed in range(3)]
        children = [stack.enter_context(forked(work)) for work in works]
        hammered(states, runs, 3, 200)
        assert list(map(status_of, children)) == [0, 0, 0]
    checked(states, runs)


def test_a_process_that_dies_inside_a_shard_empties_it() -> None:
    states, owner = UserStates(100_000), owner_of(1)
    runs, history = Runs(states), History((1, 2), 1)
    for turn in range(20):
        for number in range(turn):
            states.write(owner, name_of(number), bytes(3000), 1.0)
        prefix = runs.prefix(owner, history)
        assert runs.run(prefix, history)
        table, name = table_of(prefix), name_of(-turn - 1)
        # The state lies where no memory is.
        unmapped = partial(abi.states_write, table, owner, name, 8, 70_000, 1.0, 1)
        with forked(unmapped) as child:
            assert status_of(child) == -signal.SIGSEGV
        assert states.read(name) is None
        assert states.counts(owner) == (0, 0)
        assert known_by(runs.prefix(owner, history)) == 0
        if turn % 5 == 0:
            checked(states, runs)
        states.write(owner, name, b"after", 1.0, is_always=True)
        assert bytes_of(states.read(name)) == b"after"


def test_killed_processes_leave_a_table_that_works() -> None:
    states, draw = UserStates(300_000), random.Random(1)
    runs = Runs(states)
    for turn in range(60):
        reader, writer = os.pipe()

        def work(writer: int = writer, turn: int = turn) -> None:
            owner, name = owner_of(1), name_of(1000 + turn)
            state = content_of(name, 250_000)
            while True:
                os.write(writer, b"1")
                states.write(owner, name, state, 1.0, is_always=True)
                states.read(name)
                hammered(states, runs, turn, 1)

        with forked(work) as child:
            for _ in range(draw.randrange(1, 8)):
                assert os.read(reader, 1)
            os.kill(child, signal.SIGKILL)
            assert status_of(child) == -signal.SIGKILL
        os.close(reader)
        os.close(writer)
        hammered(states, runs, turn, 2)
        name = name_of(1000 + turn)
        assert bytes_of(states.read(name)) in (None, content_of(name, 250_000))
    checked(states, runs)


def test_a_process_that_stops_inside_a_shard_holds_nobody_up() -> None:
    states, owner, name = UserStates(300_000), owner_of(1), name_of(1)
    runs, history = Runs(states), History((1, 2), 1)
    table = table_of(runs.prefix(owner, history))
    states.write(owner, name, b"kept", 1.0)

    def work() -> None:
        c = ctypes.CDLL(None)
        # A state that lies where no memory is: the process waits for ever, with the lock.
        c.signal(signal.SIGSEGV, ctypes.cast(c.pause, ctypes.c_void_p))
        abi.states_write(table, owner, name_of(2), 8, 70_000, 1.0, 1)

    with forked(work) as child:
        while states.read(name) is not None:
            pass
        states.write(owner, name_of(3), b"not kept", 1.0)
        assert states.counts(owner) == (0, 0)
        prefix = runs.prefix(owner, history)
        assert known_by(prefix) == 0
        assert runs.run(prefix, history)
        os.kill(child, signal.SIGKILL)
        assert status_of(child) == -signal.SIGKILL
    states.write(owner, name, b"again", 1.0)
    assert bytes_of(states.read(name)) == b"again"
    assert states.read(name_of(3)) is None


def test_a_histories_first_missing_block_decides_for_those_behind_it() -> None:
    states, owner = UserStates(4 << 20), owner_of(1)
    runs = Runs(states)
    number = 0
    while not owner.evictions:
        number += 1
        # They save nothing: the blocks are worth more.
        states.write(owner, name_of(number), bytes(CHUNK), 0.0, is_always=True)
    for turn in range(4):
        history = History(range(100 * turn, 100 * turn + 60), 1)
        known = []
        for _ in range(3):
            prefix = runs.prefix(owner, history)
            known.append(known_by(prefix) // BLOCK_POSITIONS)
            assert runs.run(prefix, history)
        assert known == [0, 0, 60]
