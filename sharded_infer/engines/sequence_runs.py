"""Scores a batch of a tower over sequences in pieces: of similar lengths, and of one request.

Attention costs its padded positions, in time and memory.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.layout import GRAIN
from sharded_infer.inputs.sequences.tower_rows import SequenceRows
from sharded_infer.lookups.lookup_work import LookedUp
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.tensors import tensor_of

Ints = NDArray[np.int64]
Score = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, ...]]

# Padded positions of a piece: matrix products are large enough, and intermediate values fit caches.
MOST_POSITIONS = 8192
# Positions that cost about as much as another run of the tower.
_RUN_POSITIONS = 512


class Piece(NamedTuple):
    """Samples of a batch, int64, ascending; of one `request`, if requests share a sequence."""

    samples: Ints
    request: int | None


def score_pieces(
    batch: ModelInput,
    lookup: LookedUp,
    sequences: Sequence[SequenceSpec],
    score: Score,
    run_size: Callable[[int], int],
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    """Runs the tower on pieces of a batch.

    Args:
        lookup: of the batch, with a row for each sample.
        sequences: of the model, in the spec's order.
        score: runs the tower on all inputs but the embeddings, and the embeddings.
        run_size: batch size of the tower for some samples.

    Returns:
        Outputs, and the sequences' positions with an id, and padding.
    """
    samples = batch.batch_size
    owners = _owners(batch, lookup.sequences)
    positions = np.zeros(samples, np.int64)
    for one in lookup.sequences:
        lengths = one.lengths.numpy()
        positions += lengths if owners is None or len(lengths) == samples else lengths[owners]
    gathered: list[list[Tensor]] = []
    order, padded = [], 0
    for piece in pieces_of(positions, owners):
        count = len(piece.samples)
        rows = run_size(count)
        chosen = tensor_of(piece.samples)
        inputs = [_rows_of(tensor_of(array), chosen, rows) for array in batch.dense]
        for one, spec in zip(lookup.sequences, sequences, strict=True):
            own: Tensor | slice = chosen
            if piece.request is not None and len(one.lengths) != samples:
                own = slice(piece.request, piece.request + 1)
            spread = part_of(one, spec, own, GRAIN).spread(count, rows, None)
            padded += rows * spread.rows.shape[1]
            inputs += spread.inputs
        scores = score(inputs, _rows_of(lookup.pooled, chosen, rows))
        gathered.append([output[:count] for output in scores])
        order.append(piece.samples)
    used = int(positions.sum())
    if len(gathered) == 1:
        return tuple(gathered[0]), (used, padded - used)
    places = torch.empty(samples, dtype=torch.int64)
    places[tensor_of(np.concatenate(order))] = torch.arange(samples)
    outputs = tuple(torch.cat(parts)[places] for parts in zip(*gathered, strict=True))
    return outputs, (used, padded - used)


def _owners(batch: ModelInput, sequences: Sequence[SequenceRows]) -> Ints | None:
    """Request of each sample, int64 `[B]`; None where requests share no sequence."""
    if all(len(one.lengths) == batch.batch_size for one in sequences):
        return None
    if batch.repeats is None:
        return np.zeros(batch.batch_size, np.int64)
    return np.repeat(np.arange(len(batch.repeats)), batch.repeats)


def _rows_of(array: Tensor, chosen: Tensor, rows: int) -> Tensor:
    """Some samples' rows of `[B, width]` or `[1, width]`, and zeros below."""
    padded = array.new_zeros(rows, array.shape[1])
    padded[: len(chosen)] = array if len(array) == 1 else array[chosen]
    return padded


def pieces_of(positions: Ints, owners: Ints | None) -> list[Piece]:
    """Cuts a batch.

    Args:
        positions: int64 `[B]`, of each sample's sequences together.
        owners: int64 `[B]`, the request of each sample, ascending; None: they share no sequence.
    """
    if owners is None:
        order = np.argsort(positions, kind="stable")
        return [Piece(np.sort(order[part]), None) for part in _runs(positions[order])]
    pieces = []
    for request in range(int(owners[-1]) + 1):
        first, end = np.searchsorted(owners, [request, request + 1])
        pieces += [
            Piece(np.arange(first + part.start, first + part.stop), request)
            for part in _runs(positions[first:end])
        ]
    return pieces


def _runs(positions: Ints) -> Iterator[slice]:
    """Runs of samples whose padded positions are few, and cost less than another run."""
    start, used, longest = 0, 0, 0
    for at, own in enumerate(positions.tolist()):
        padded = -(-max(own, 1) // GRAIN) * GRAIN
        together = (at + 1 - start) * max(longest, padded)
        if at > start and (
            together > MOST_POSITIONS or together > used + padded + _RUN_POSITIONS + used // 4
        ):
            yield slice(start, at)
            start, used, longest = at, 0, 0
        used, longest = used + padded, max(longest, padded)
    yield slice(start, len(positions))


def part_of(
    sequence: SequenceRows, spec: SequenceSpec, samples: Tensor | slice, grain: int = 1
) -> SequenceRows:
    """Sequences of some samples, ascending, padded to a multiple of the grain from the longest."""
    count, padded, _ = sequence.rows.shape
    lengths = sequence.lengths[samples]
    positions = _positions(spec, int(lengths.max()), padded, grain)
    if len(lengths) == count and positions == slice(0, padded):
        return sequence

    def taken(array: Tensor) -> Tensor:
        return array[samples, positions].contiguous()

    companions = tuple(map(taken, sequence.companions))
    return SequenceRows(taken(sequence.rows), lengths, companions, spec.shortest)


def _positions(spec: SequenceSpec, longest: int, padded: int, grain: int) -> slice:
    """Positions in use, of those that all of a batch have."""
    if spec.pad_to != "longest":
        return slice(0, padded)
    wanted = min(-(-max(longest, 1) // grain) * grain, padded)
    return slice(padded - wanted, padded) if spec.pad == "left" else slice(0, wanted)
