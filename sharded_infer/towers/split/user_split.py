"""A loaded tower in two stages: a request's user, computed once and alone, and its candidates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.abi.user_states import StateOwner
from kernels.sequences.user_states import (
    BLOCK_POSITIONS,
    HistoryColumn,
    Prefixes,
    UserStates,
)
from sharded_infer.errors import InternalError
from sharded_infer.towers.lowering.joined.growing_stage import GrowingStage
from sharded_infer.towers.program.tower_inputs import TowerInputs
from sharded_infer.towers.split.parts import positions_of
from sharded_infer.towers.split.split_tower import check_close_scores, joined, run_pieces
from sharded_infer.towers.split.splitting import SplitProgram

# Candidates of each request of the check.
_CANDIDATES: Final = (3, 1, 4)
_LENGTHS: Final = (3, 1, 5)
# Blocks of the history that the check of a growing stage computes by parts, and memory for them.
_GROWN: Final = 3
_CHECK_BYTES: Final = 64 * 2**20
# Of the largest result.
_MOST_DIFFERENCE: Final = 1e-6
# The owner of all pairs of one request.
_FIRST: Final = torch.zeros(1, dtype=torch.int64)


@dataclass(frozen=True, slots=True, eq=False)
class UserSplit:
    """A tower whose user inputs come once a request; thread-safe.

    Callers are in torch's inference mode, which takes longer to enter than a small operator. The
    result of `user` depends on one request alone, to the bit, and may be kept.

    Attributes:
        shared: names of the inputs by request, without the embeddings, in the program's order.
        apart: True if candidates run request by request: shared values have a row for each position
            of a sequence.
        growing: the first stage for the positions behind a known beginning, or why there is none.
    """

    program: SplitProgram
    shared: tuple[str, ...]
    apart: bool
    growing: GrowingStage | str

    def user(
        self, dense: Sequence[Tensor], embeddings: Tensor, *, whole: bool = False
    ) -> tuple[Tensor, ...]:
        """Runs the first stage for one request; returns the input of `candidates`.

        Args:
            dense: the inputs of `shared`, `[1, ...]` each. Sequences need no padding: L is the
                request's own length, at least 1, or `max_length` of a fixed one.
            embeddings: fp32 `[1, width]`, those of the features by request; `[1, 0]` if none are.
            whole: True if all positions of the sequences that grow are in use.
        """
        inputs = [tensor.contiguous() for tensor in (*dense, embeddings)]
        graph = self.program.whole if whole else None
        made: tuple[Tensor, ...] = (graph or self.program.request).forward(*inputs)
        return made

    def behind(
        self, dense: Sequence[Tensor], embeddings: Tensor, prefix: Prefixes
    ) -> tuple[Tensor, ...] | None:
        """As `user` of a growing stage, whose sequence has the positions behind a prefix.

        None if the prefix is no longer kept.
        """
        if isinstance(self.growing, str):
            raise InternalError(f"a stage that does not grow: {self.growing}")
        return self.growing([*dense, embeddings], prefix)

    def together(
        self,
        dense: Sequence[Tensor],
        embeddings: Tensor,
        own_dense: Sequence[Tensor],
        own_embeddings: Tensor,
        positions: NDArray[np.int64] | None = None,
        counts: NDArray[np.int64] | None = None,
        prefixes: Prefixes | None = None,
    ) -> tuple[NDArray[np.float32], ...] | None:
        """Both stages for requests whose sequences have no padding, with their bits.

        Callers need not be in inference mode. `dense` and `embeddings` are those of `user`, of one
        request after another, `own_dense` and `own_embeddings` those of `candidates`. The other
        arguments are those of `JoinedStages`.

        Returns:
            fp32 `[C]` of each output; None if it takes more than one call, or a prefix is no longer
            kept.
        """
        call = self.program.together
        if call is None:
            return None
        own = *own_dense, own_embeddings
        return call((*dense, embeddings), own, positions, counts, prefixes)

    def candidates(
        self,
        dense: Sequence[Tensor],
        embeddings: Tensor,
        users: Sequence[tuple[Tensor, ...]],
        counts: Sequence[int],
        *,
        pieces: Sequence[int] = (),
    ) -> tuple[Tensor, ...]:
        """Scores candidates, in the order of their requests: fp32 `[B]` or `[B, K]` per output.

        Args:
            dense: the other inputs, `[B, ...]` each, in the program's order.
            embeddings: fp32 `[B, width]`, those of the features by candidate.
            users: results of `user`, per request.
            counts: candidates of each request, at least 1; they sum to B.
            pieces: numbers of candidates to run in turn, which sum to B; all at once if empty. Not
                used if `apart`.
        """
        inputs = [tensor.contiguous() for tensor in (*dense, embeddings)]
        if not self.apart:
            if len(users) == 1:
                owners, given = _FIRST.expand(counts[0]), users[0]
            else:
                owners = torch.arange(len(users)).repeat_interleave(torch.tensor(counts))
                given = joined(users)
            pieces = pieces or [sum(counts)]
            return run_pieces(self.program.pair, (*inputs, owners), pieces, given)
        parts = zip(*(torch.split(one, list(counts)) for one in inputs), strict=True)
        made = [
            self.program.pair(*part, torch.zeros(count, dtype=torch.int64), *user)
            for part, user, count in zip(parts, users, counts, strict=True)
        ]
        return joined(made)


def user_split(program: SplitProgram, inputs: TowerInputs, shared: Sequence[str]) -> UserSplit:
    """A split program as the stages of a tower.

    `inputs` are those of the whole tower, `shared` names those by request, in the program's order.
    """
    width = sum(size for by_request, size in program.runs if by_request)
    zeros = dict(zip(inputs.names, inputs.zeros(inputs.lengths(_LENGTHS[0])), strict=True))
    with torch.inference_mode():
        users = program.request(*(zeros[name][:1] for name in shared), torch.zeros(1, width))
    apart = program.takes_one or any(one.dim() != 2 for one in users)
    growing = program.growing
    if isinstance(growing, GrowingStage):
        difference = _difference(program, growing, inputs, shared)
        if difference > _MOST_DIFFERENCE:
            growing = (
                "its results behind a known beginning differ from those of the whole history by "
                f"{difference:.3g} of the largest, expected at most {_MOST_DIFFERENCE:g}"
            )
    return UserSplit(program, tuple(shared), apart, growing)


def _difference(
    program: SplitProgram, growing: GrowingStage, inputs: TowerInputs, shared: Sequence[str]
) -> float:
    """The largest change of a result by known beginnings, as a share of the largest result."""
    longest = max(one.max_length for one in inputs.sequences.values())
    length = min(longest, _GROWN * BLOCK_POSITIONS + 1)
    samples = dict(zip(inputs.names, inputs.samples(1, inputs.lengths(length)), strict=True))
    positions = positions_of(program.runs, True)
    embeddings = samples[inputs.names[-1]][:1, positions]
    user = [*(samples[name][:1].contiguous() for name in shared), embeddings.contiguous()]
    states, owner = UserStates(_CHECK_BYTES), StateOwner()
    lengths = np.array([length])
    history = HistoryColumn(np.arange(length), lengths, 1)
    largest = 0.0
    with torch.inference_mode():
        stage = program.whole or program.request
        expected: tuple[Tensor, ...] = stage(*user)
        for _ in range(2):  # nothing is known, then all but the last block
            prefix = states.prefixes(owner, [history], np.zeros_like(lengths), lengths)
            known = int(prefix.positions[0])
            behind = [
                tensor[:, known:].contiguous() if at in growing.by_position else tensor
                for at, tensor in enumerate(user)
            ]
            results = growing(behind, prefix)
            if results is None:
                return np.inf
            for result, other in zip(results, expected, strict=True):
                change = float((result - other).abs().max() / other.abs().max().clamp(min=1e-30))
                largest = max(largest, change if change == change else np.inf)
    return largest


def check_user_split(
    split: UserSplit,
    whole: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, ...]],
    inputs: TowerInputs,
) -> None:
    """Compares the stages with the whole tower on random requests of several lengths.

    Args:
        whole: takes all inputs but the embeddings, and the embeddings.

    Raises:
        TowerError: a score differs by more than rounding.
    """
    mine, users, wholes, expected = [], [], [], []
    together: list[tuple[Tensor, ...]] = []
    flags = [name in split.shared for name in inputs.names[:-1]]
    by_user, own = (positions_of(split.program.runs, flag) for flag in (True, False))
    for count, length in zip(_CANDIDATES, _LENGTHS, strict=True):
        *dense, embeddings = inputs.samples(count, inputs.lengths(length))
        dense = [
            one[:1].expand_as(one) if flag else one for one, flag in zip(dense, flags, strict=True)
        ]
        embeddings[:, by_user] = embeddings[:1, by_user]
        shared = [one[:1] for one, flag in zip(dense, flags, strict=True) if flag]
        # The first sample's sequences have no padding.
        users.append(split.user(shared, embeddings[:1, by_user]))
        wholes.append(split.user(shared, embeddings[:1, by_user], whole=True))
        rest = [one for one, flag in zip(dense, flags, strict=True) if not flag]
        mine.append((*rest, embeddings[:, own]))
        found = split.together(shared, embeddings[:1, by_user], rest, embeddings[:, own])
        together += [] if found is None else [tuple(map(torch.from_numpy, found))]
        expected.append(whole(dense, embeddings))
    scores = joined(expected)
    for stage in (users, wholes):
        check_close_scores(_scores(split, mine, stage), scores)
    if together:
        check_close_scores(joined(together), scores)


def _scores(
    split: UserSplit, mine: Sequence[Sequence[Tensor]], users: Sequence[tuple[Tensor, ...]]
) -> list[Tensor]:
    # Sequences by candidate have the same length in a batch: their requests run in turn.
    if any(one.dim() == 3 for one in mine[0]):
        found = [
            split.candidates(rest[:-1], rest[-1], [user], [count])
            for rest, user, count in zip(mine, users, _CANDIDATES, strict=True)
        ]
        return list(joined(found))
    *rest, embeddings = (torch.cat(one) for one in zip(*mine, strict=True))
    return list(split.candidates(rest, embeddings, users, _CANDIDATES))
