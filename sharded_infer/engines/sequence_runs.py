"""Scores a batch of a tower over sequences, piece by piece."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from sharded_infer.engines.sequence_pieces import Ints, pieces_of, shortened
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.sequences.tower_rows import SequenceRows
from sharded_infer.lookups.lookups import LookedUp
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.tensors import tensor_of

Score = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, ...]]


def score_pieces(
    batch: ModelInput,
    found: LookedUp,
    sequences: Sequence[SequenceSpec],
    score: Score,
    run_size: Callable[[int], int],
) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
    """Runs the tower on pieces of a batch.

    Args:
        found: of the batch, with a row for each sample.
        sequences: of the model, in the spec's order.
        score: runs the tower on all inputs but the embeddings, and the embeddings.
        run_size: batch size of the tower for some samples.

    Returns:
        fp32 `[B]` or `[B, K]` of each output, and the sequences' positions with an id, and padding.
    """
    samples = batch.batch_size
    owners = _owners(batch, found.sequences)
    positions = np.zeros(samples, np.int64)
    for one in found.sequences:
        lengths = one.lengths.numpy()
        positions += lengths if owners is None or len(lengths) == samples else lengths[owners]
    gathered: list[list[Tensor]] = []
    order, padded = [], 0
    for piece in pieces_of(positions, owners):
        count = len(piece.samples)
        rows = run_size(count)
        chosen = tensor_of(piece.samples)
        inputs = [_rows_of(tensor_of(array), chosen, rows) for array in batch.dense]
        for one, spec in zip(found.sequences, sequences, strict=True):
            own = len(one.lengths) == samples
            at = piece.samples if own or piece.request is None else [piece.request]
            spread = shortened(one, spec, at).spread(count, rows, None)
            padded += rows * spread.rows.shape[1]
            inputs += spread.inputs
        scores = score(inputs, _rows_of(found.pooled, chosen, rows))
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
