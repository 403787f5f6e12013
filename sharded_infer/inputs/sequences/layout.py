"""Layout of a batch's sequences for the tower: padded to one length.

Each position of the padded sequences is a bag of one id, or an empty one, which reads zeros. So
every lookup that pools bags also looks sequences up.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sharded_infer.errors import InternalError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

Ints = NDArray[np.int64]
_N = TypeVar("_N", np.float32, np.int64)

# Lengths of a batch are rounded up, because towers prepare for each new length.
GRAIN = 8


class Packed(NamedTuple):
    """Positions of one sequence, of R requests one after another without padding.

    Attributes:
        sequence: its number.
        firsts, counts: int64 `[R]`, the first position of each request and their number.
        repeats: int64 `[R]`, samples of each request.
        are_all_used: False if a request has no position.
    """

    sequence: int
    firsts: Ints
    counts: Ints
    repeats: Ints
    are_all_used: bool

    @classmethod
    def of(cls, sequence: int, firsts: Ints, counts: Ints, repeats: Ints) -> "Packed":
        """The positions of requests of which some may have none."""
        are_all_used = counts[0] > 0 if len(counts) == 1 else counts.all()
        return cls(sequence, firsts, counts, repeats, bool(are_all_used))

    @property
    def places(self) -> Ints:
        """Int64 `[R]`, positions laid out: an empty one of a request without any."""
        return self.counts if self.are_all_used else np.maximum(self.counts, 1)


class LaidOut(NamedTuple):
    """One sequence of B samples, or of the R requests that share it, padded to L.

    Packed ones count as one sample of all positions, except in `lengths`.

    Attributes:
        bags: of each position of each of its features: lengths `[F, B * L]` of 0 or 1.
        lengths: int64 `[B]`, at most the spec's `max_length`.
        companions: fp32 `[B, L, width]` of each dense input, then int64 `[B, L]` of each feature
            whose ids are inputs; zeros where padded.
        padded_length: L.
        width: columns of a position's rows.
    """

    bags: JaggedBatch
    lengths: Ints
    companions: tuple[NDArray[np.float32] | Ints, ...]
    padded_length: int
    width: int
    shortest: int


class _Place(NamedTuple):
    """A sequence's place among the jagged inputs of a model."""

    spec: SequenceSpec
    features: tuple[int, ...]
    numbers: tuple[int, ...]
    width: int  # of the rows
    widths: tuple[int, ...]  # of the numbers
    raw: tuple[bool, ...]  # whether any id of a feature is one, -1 too
    ids: tuple[int, ...]  # features whose ids are the tower's inputs


class SequenceLayout:
    """Lays out the sequences of one model's batches."""

    def __init__(self, spec: ModelSpec, raw: frozenset[str] = frozenset()) -> None:
        features = spec.input_features
        rows = len(spec.table_features)
        self._places = tuple(
            _Place(
                one,
                tuple(i for i, f in enumerate(features[:rows]) if f.sequence == name),
                tuple(i for i, f in enumerate(features) if f.name in one.dense),
                sum(f.table.dim for f in features[:rows] if f.sequence == name),
                tuple(one.dense.values()),
                tuple(f.table.name in raw for f in features[:rows] if f.sequence == name),
                tuple(i for i, f in enumerate(features) if i >= rows and f.name in one.ids),
            )
            for name, one in spec.sequences.items()
        )
        self._pooled = len(spec.features)

    @property
    def features(self) -> tuple[tuple[int, ...], ...]:
        """The features of each sequence in tables, by position."""
        return tuple(place.features for place in self._places)

    def pooled(self, batch: ModelInput) -> tuple[JaggedBatch, ...]:
        """The bags of the features that are pooled."""
        groups = []
        for group in batch.groups:
            # They ascend.
            count = bisect_left(group.features, self._pooled)
            if count:
                groups.append(group.select(range(count)))
        return tuple(groups)

    def lay_out(
        self, batch: ModelInput, grain: int = GRAIN, packed: Packed | None = None
    ) -> tuple[LaidOut, ...]:
        """All sequences of a batch with checked ids, their lengths rounded up to a `grain`.

        Raises InternalError if the inputs of a sequence have different lengths.
        """
        parts = _parts(g for g in batch.groups if g.features[-1] >= self._pooled)
        gaps = batch.may_have_gaps
        laid_out = []
        for number, place in enumerate(self._places):
            own = packed if packed is not None and packed.sequence == number else None
            laid_out.append(_laid_out(place, parts, grain, own, may_have_gaps=gaps))
        return tuple(laid_out)


def _parts(groups: Iterable[JaggedBatch]) -> dict[int, tuple[Ints, Ints]]:
    found = {}
    for group in groups:
        if len(group.features) == 1:
            found[group.features[0]] = group.values, group.lengths[0]
            continue
        start = 0
        for feature, lengths in zip(group.features, group.lengths, strict=True):
            end = start + (int(lengths[0]) if len(lengths) == 1 else int(lengths.sum()))
            found[feature] = group.values[start:end], lengths
            start = end
    return found


def _laid_out(
    place: _Place,
    parts: dict[int, tuple[Ints, Ints]],
    grain: int,
    packed: Packed | None,
    *,
    may_have_gaps: bool,
) -> LaidOut:
    spec = place.spec
    lengths = parts[place.features[0]][1]
    if packed is None:
        longest = max(1, int(lengths[0] if len(lengths) == 1 else lengths.max(initial=1)))
        kept = lengths if longest <= spec.max_length else _kept(lengths, spec)
        longest = min(longest, spec.max_length)
        rounded = min(-(-longest // grain) * grain, spec.max_length)
        padded = spec.max_length if spec.pad_to == "max_length" else rounded
        sources, targets = _places(lengths, kept, padded, spec)
        shape = len(lengths), padded
    else:
        kept = packed.counts
        sources, targets, total = _packed_places(lengths, packed)
        shape = 1, total
    grid = np.zeros((len(place.features), shape[0] * shape[1]), np.int64)
    values = []
    for row, feature, is_raw in zip(grid, place.features, place.raw, strict=True):
        ids, of_feature = parts[feature]
        _check(of_feature, lengths)
        chosen = ids[sources]
        row[targets] = 1
        if may_have_gaps and not is_raw:
            there = chosen >= 0
            row[targets] = there
            chosen = chosen[there]
        values.append(chosen)
    companions: list[NDArray[np.float32] | Ints] = []
    for feature, width in zip(place.numbers, place.widths, strict=True):
        bits, of_feature = parts[feature]
        _check(of_feature, lengths, width)
        floats = bits.astype(np.uint32).view(np.float32).reshape(-1, width)
        companions.append(_in_places(floats, sources, targets, shape))
    for feature in place.ids:
        ids, of_feature = parts[feature]
        _check(of_feature, lengths)
        # A copy: a user's kept state may be a view of them.
        companions.append(_in_places(ids.copy(), sources, targets, shape))
    joined = values[0] if len(values) == 1 else np.concatenate(values)
    bags = JaggedBatch.trusted(place.features, joined, grid, None)
    return LaidOut(bags, kept, tuple(companions), shape[1], place.width, spec.shortest)


def windows(lengths: Ints, spec: SequenceSpec) -> tuple[Ints, Ints]:
    """The first position that is used of each history, and the number of them."""
    if int(lengths[0] if len(lengths) == 1 else lengths.max(initial=0)) <= spec.max_length:
        return np.zeros_like(lengths), lengths
    kept = _kept(lengths, spec)
    return lengths - kept if spec.keep == "last" else np.zeros_like(lengths), kept


def _kept(lengths: Ints, spec: SequenceSpec) -> Ints:
    """Number of used positions of each history."""
    if spec.anchor is None:
        return np.minimum(lengths, spec.max_length)
    # Windows begin at multiples of the anchor.
    steps: Ints = -(-np.maximum(lengths - spec.max_length, 0) // spec.anchor)
    return lengths - steps * spec.anchor


def _places(
    lengths: Ints, kept: Ints, padded: int, spec: SequenceSpec
) -> tuple[Ints | slice, Ints | slice]:
    """Each kept id's place among the received ids and among the padded ones."""
    if len(lengths) == 1:
        count = int(kept[0])
        came = int(lengths[0]) - count if spec.keep == "last" else 0
        start = padded - count if spec.pad == "left" else 0
        return slice(came, came + count), slice(start, start + count)
    first = np.cumsum(lengths) - lengths
    if spec.keep == "last":
        first = first + lengths - kept
    starts = np.arange(len(lengths)) * padded
    if spec.pad == "left":
        starts = starts + padded - kept
    return _counted(first, kept), _counted(starts, kept)


def _packed_places(lengths: Ints, packed: Packed) -> tuple[Ints | slice, Ints | slice, int]:
    """Places of packed ids, as of `_places`, and the number of all positions."""
    counts, places = packed.counts, packed.places
    if len(lengths) == 1:
        first, count = int(packed.firsts[0]), int(counts[0])
        return slice(first, first + count), slice(0, count), int(places[0])
    total = int(places.sum())
    sources = _counted(np.cumsum(lengths) - lengths + packed.firsts, counts)
    if packed.are_all_used:
        return sources, slice(0, total), total
    return sources, _counted(np.cumsum(places) - places, counts), total


def _counted(firsts: Ints, counts: Ints) -> Ints:
    """`counts` consecutive numbers from each of `firsts` on."""
    begins = np.cumsum(counts) - counts
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(firsts - begins, counts)
    return numbers


def _in_places(
    values: NDArray[_N], sources: Ints | slice, targets: Ints | slice, shape: tuple[int, int]
) -> NDArray[_N]:
    """Values of each id, `[N, ...]`, as `[B, L, ...]`."""
    count = shape[0] * shape[1]
    if isinstance(targets, slice) and targets == slice(0, count):
        return values[sources].reshape(*shape, *values.shape[1:])
    padded = np.zeros((count, *values.shape[1:]), values.dtype)
    padded[targets] = values[sources]
    return padded.reshape(*shape, *values.shape[1:])


def _check(lengths: Ints, expected: Ints, width: int = 1) -> None:
    if len(lengths) == len(expected) == 1:
        is_same = lengths[0] == expected[0] * width
    else:
        is_same = np.array_equal(lengths, expected * width)
    if not is_same:
        raise InternalError("a sequence's inputs have different lengths")
