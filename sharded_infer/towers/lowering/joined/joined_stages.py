"""Scores of requests by one call: each one's user's stage and its candidates' pass.

    user = passes(history)
    scores = rows(candidates, user)         ->  scores = passes(history, candidates)

A call takes as long as the work of a hundred candidates. Only where the user's stage is one call,
and the candidates' part one pass on its results.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule, Node

from kernels.abi.passes import CANDIDATES
from kernels.sequences.passes import Memory, Operand, Passes, RowStepping
from kernels.sequences.user_states import Prefixes
from sharded_infer.towers.lowering.joined.joined_passes import JoinedPasses
from sharded_infer.towers.lowering.rewriting import module_of
from sharded_infer.towers.lowering.sequences.row_steps import RowPass
from sharded_infer.towers.lowering.sequences.views import Views

_SQUEEZE: Final = torch.ops.aten.squeeze.dim


class JoinedStages:
    """The call; thread-safe.

    Args:
        stage: the user's stage.
        given: which inputs of the user's stage it takes.
        steps: of the candidates.
        sources: of the steps: which result of the stage, or else which input by candidate.
        scores: which results of the steps are the scores, in the order of the tower's outputs.
    """

    def __init__(
        self,
        stage: JoinedPasses,
        given: Sequence[int],
        steps: RowPass,
        sources: Sequence[tuple[int | None, int | None]],
        scores: Sequence[int],
    ) -> None:
        rows = steps.steps
        own = [one for _, one in sources if one is not None]
        made = [Memory(CANDIDATES, width) for width in rows.output_widths]
        # The stage's results come between the passes now.
        read = [
            Memory(CANDIDATES, width) if result is None else stage.outputs[result]
            for (result, _), width in zip(sources, rows.widths, strict=True)
        ]
        of_own = [memory for memory in read if memory.rows == CANDIDATES]
        last = RowStepping(rows, list(map(Operand, (*read, *made))), CANDIDATES)
        self._passes = Passes(
            [*stage.inputs, *of_own], made, [*stage.members, last], states=stage.states
        )
        self._stage, self._given, self._own = stage, tuple(given), tuple(own)
        self._widths, self._scores = tuple(rows.output_widths), tuple(scores)

    def __call__(
        self,
        user: Sequence[Tensor],
        own: Sequence[Tensor],
        positions: NDArray[np.int64] | None = None,
        counts: NDArray[np.int64] | None = None,
        prefixes: Prefixes | None = None,
    ) -> tuple[NDArray[np.float32], ...] | None:
        """Scores C candidates of R requests: fp32 `[C]` per output; None if a prefix is not kept.

        Args:
            user: of each request in turn, without padding; of sequences, the positions behind the
                prefixes.
            own: `[C, ...]`, of the candidates.
            positions: int64 `[R]`, at least 1, with those of the prefixes; None: of one request
                without a prefix.
            counts: int64 `[R]`, candidates of each request; None: there is one.

        Raises:
            InputError: the inputs' sizes disagree.
        """
        read = [user[at].contiguous() for at in self._given]
        candidates = own[self._own[0]].shape[0]
        made = [np.empty(candidates * width, np.float32) for width in self._widths]
        are_made = self._passes(
            np.array([self._stage.positions(read)]) if positions is None else positions,
            [*read, *[own[at].contiguous() for at in self._own]],
            [torch.from_numpy(one) for one in made],
            candidates=np.array([candidates]) if counts is None else counts,
            prefixes=prefixes,
        )
        return tuple([made[at] for at in self._scores]) if are_made else None


def join_stages(
    whole: GraphModule,
    pair: GraphModule,
    rows_of_pairs: Callable[..., Tensor],
    views: Views,
) -> JoinedStages | None:
    """Joins both stages of a split tower; None if they are more than one call and one pass.

    Args:
        whole: the user's stage where there is no padding, with its passes joined.
        pair: takes inputs by candidate, each one's owner, and the results of `whole`.
        rows_of_pairs: gives each candidate its request's row, in `pair`.
        views: of `whole`.
    """
    calls = _only_call(whole), _only_call(pair)
    module, steps = module_of(whole, calls[0], JoinedPasses), module_of(pair, calls[1], RowPass)
    stage, pass_ = calls
    if stage is None or pass_ is None or module is None or steps is None:
        return None
    returned, inputs = _returned(whole), _placeholders(pair)
    # The last of the others has the owners.
    own, users = inputs[: -len(returned) - 1], inputs[-len(returned) :]
    places = {node: at for at, node in enumerate(_placeholders(whole))}
    given = [places.get(node) for node in stage.all_input_nodes]
    results = [result_of(views.whole(node), stage) for node in returned]
    sources: list[tuple[int | None, int | None]] = []
    for node in pass_.args:
        if not isinstance(node, Node):
            return None
        if node.target is rows_of_pairs and node.args[0] in users:
            sources.append((results[users.index(node.all_input_nodes[0])], None))
        elif node in own:
            sources.append((None, own.index(node)))
        else:
            return None
    scores = [result_of(_column_of(node), pass_) for node in _returned(pair)]
    if None in (*given, *results, *scores) or all(one is None for _, one in sources):
        return None
    has_rows = all(module.outputs[one].rows == 1 for one, _ in sources if one is not None)
    one_column = all(steps.steps.output_widths[at] == 1 for at in scores if at is not None)
    if not has_rows or not one_column:
        return None
    return JoinedStages(module, given, steps, sources, scores)  # type: ignore[arg-type]


def _only_call(program: GraphModule) -> Node | None:
    calls: list[Node] = program.graph.find_nodes(op="call_module")
    return calls[0] if len(calls) == 1 else None


def _placeholders(program: GraphModule) -> list[Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _returned(program: GraphModule) -> list[Any]:
    [output] = program.graph.find_nodes(op="output")
    return list(output.args[0])


def result_of(node: object, call: Node) -> int | None:
    """The number of a call's result that a node is; None if it is none."""
    if not isinstance(node, Node) or node.target is not operator.getitem:
        return None
    source, at = node.args
    return at if source is call and isinstance(at, int) else None


def _column_of(node: object) -> object:
    """The source of a node that drops a single column; other nodes themselves."""
    drops = isinstance(node, Node) and node.target is _SQUEEZE and node.args[1] == -1
    return node.args[0] if drops else node  # type: ignore[attr-defined]
