"""A loaded tower for requests that send some features once for all their pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule

from sharded_infer.errors import TowerError
from sharded_infer.towers.program.tower_inputs import TowerInputs
from sharded_infer.towers.split.parts import positions_of
from sharded_infer.towers.split.splitting import SplitProgram

# Multiplications in the time of one more operator; measured as those of `tower_kernels`.
_PRODUCTS_OF_AN_OPERATOR = 1e6
# Pairs and requests of the check, and what rounding may change: of the scores' range, mostly.
_PAIRS, _REQUESTS, _LENGTH = 8, 2, 3
_OF_RANGE, _OF_LARGEST = 0.25, 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class SplitTower:
    """A tower in two programs; thread-safe."""

    program: SplitProgram

    def is_worthwhile(self, pairs: int, requests: int) -> bool:
        """True if it takes less time than the whole tower for these pairs."""
        saved = self.program.saved_products * (pairs - requests)
        return saved > _PRODUCTS_OF_AN_OPERATOR * max(0, self.program.more_operators)

    def __call__(
        self,
        dense: Sequence[Tensor],
        own: Tensor,
        shared: Tensor,
        owners: Tensor,
        *,
        pieces: Sequence[int],
        request_pieces: Sequence[int],
    ) -> tuple[Tensor, ...]:
        """Scores a batch: fp32 `[B]` or `[B, K]` of each output.

        Args:
            dense: fp32 `[B, width]` each.
            own: fp32 `[B, width]`, embeddings of the features by pair.
            shared: fp32 `[R, width]`, those of the features by request.
            owners: int64 `[B]`, each pair's request.
            pieces: numbers of pairs to run in turn; they sum to B.
            request_pieces: the same of requests.
        """
        with torch.inference_mode():
            given = run_pieces(self.program.request, (shared,), request_pieces, ())
            return run_pieces(self.program.pair, (*dense, own, owners), pieces, given)


def run_pieces(
    program: GraphModule, inputs: Sequence[Tensor], pieces: Sequence[int], given: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Runs a program on the rows in pieces; `given` is the same for all."""
    if len(pieces) == 1:
        whole: tuple[Tensor, ...] = program.forward(*inputs, *given)
        return whole
    parts = zip(*(torch.split(tensor, list(pieces)) for tensor in inputs), strict=True)
    return joined([program.forward(*part, *given) for part in parts])


def joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Results of several runs, one after another in each tensor."""
    return parts[0] if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))


def check_split(
    split: SplitTower,
    whole: Callable[[Sequence[Tensor], Tensor], tuple[Tensor, ...]],
    inputs: TowerInputs,
) -> None:
    """Compares a split tower with the whole one on random inputs.

    Args:
        whole: takes all inputs but the embeddings, and the embeddings.

    Raises:
        TowerError: a score differs by more than rounding.
    """
    *dense, embeddings = inputs.samples(_PAIRS, inputs.lengths(_LENGTH))
    owners = torch.arange(_PAIRS) * _REQUESTS // _PAIRS
    shared, own = (positions_of(split.program.runs, flag) for flag in (True, False))
    users = embeddings[:_REQUESTS, shared].contiguous()
    embeddings[:, shared] = users[owners]
    pieces, requests = [_PAIRS], [_REQUESTS]
    found = split(
        dense,
        embeddings[:, own].contiguous(),
        users,
        owners,
        pieces=pieces,
        request_pieces=requests,
    )
    check_close_scores(found, whole(dense, embeddings))


def check_close_scores(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raises TowerError when the scores of a split tower are not those of the whole one."""
    for position, (some, other) in enumerate(zip(found, expected, strict=True)):
        known = ~other.isnan()
        spread = torch.where(known, other, 0.0)
        allowed = _OF_RANGE * (spread.amax(0) - spread.amin(0)) + _OF_LARGEST * spread.abs().amax(0)
        if some.shape != other.shape or not bool(
            (((some - other).abs() <= allowed) | ~known).all()
        ):
            raise TowerError(
                f"output {position} of the split tower differs from the whole tower's by "
                f"{float((some - other).abs().max()):.6g}"
            )
