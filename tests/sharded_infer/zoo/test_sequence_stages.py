"""The zoo's sequence towers in their compiled passes, whole and in two stages: torch's scores."""

import operator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from kernels.errors import InputError
from kernels.sequences.passes import Attending, PairBiasing, RowStepping
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.lowering.joined.joined_passes import JoinedPasses
from sharded_infer.towers.lowering.sequences.attention import HeadsPass
from sharded_infer.towers.lowering.sequences.pair_layers import PairPass
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_split import UserSplit
from sharded_infer.towers.tower import Tower, export_tower
from tests.sharded_infer.zoo.test_sequence_towers import (
    MAX_LENGTH,
    OPTIONS,
    WIDTH,
    built,
    companions,
    inputs,
    pooled_dims,
    scores,
)

# Passes of a user's stage without padding, which are one call: rows, attentions, biases by time.
JOINED = {"sasrec": (5, 2, 0), "hstu": (5, 2, 1)}
# Of attention and of layers on pairs. BST's attention has one query.
PASSES = {"din": (0, 1), "sasrec": (2, 0), "bst": (0, 0), "hstu": (2, 0)}

Given = dict[str, Tensor]


class Stages:
    """A tower of the zoo: the module, as it is loaded, and in two stages."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.architecture = architecture
        self.module: nn.Module = built(architecture).requires_grad_(False)
        dense = dict.fromkeys(companions(architecture), 1)
        sequences = {"history": SequenceInput(WIDTH, MAX_LENGTH, dense=dense)}
        width = sum(pooled_dims(architecture))
        program = export_tower(
            self.module,
            dense={},
            embedding_width=width,
            outputs=("score",),
            sequences=sequences,
            precision=Precision.FP32,
        )
        path = folder / "tower.pt2"
        write_program(program, path)
        self.whole = Tower.load(
            path, dense={}, embedding_width=width, outputs=("score",), sequences=sequences
        )
        self.split: UserSplit = self.whole.split_user({"history"}, (Run(False, width),))

    def request(self, length: int, candidates: int) -> Given:
        """A user's history, one row, and its candidates."""
        given = inputs(self.architecture, (length,), max(length, 1))
        more = inputs(self.architecture, (1,) * candidates, 1)
        return given | {"embeddings": more["embeddings"]}

    def expected(self, given: Given) -> Tensor:
        return scores(self.module, repeated(given))

    def of_the_whole(self, given: Given) -> Tensor:
        """Scores of the loaded tower, which gets the history with every candidate."""
        *own, embeddings = repeated(given).values()
        [found] = self.whole([one.contiguous() for one in own], embeddings)
        return found

    def of_stages(self, *requests: Given, whole: bool = False) -> Tensor:
        """Scores of all candidates of the requests, together in the second stage.

        With `whole`, histories have no padding for the first stage.
        """
        none = torch.zeros(1, 0)
        users = [self.split.user([*one.values()][:-1], none, whole=whole) for one in requests]
        own = [one["embeddings"] for one in requests]
        [found] = self.split.candidates([], torch.cat(own), users, [len(one) for one in own])
        return found

    def together(self, given: Given) -> Tensor | None:
        """Scores of one request's candidates by one call; None if it takes more."""
        *user, embeddings = given.values()
        found = self.split.together(user, torch.zeros(1, 0), [], embeddings)
        return None if found is None else torch.from_numpy(found[0])


def repeated(given: Given) -> Given:
    count = len(given["embeddings"])
    return {
        name: one if name == "embeddings" else one.expand(count, *one.shape[1:])
        for name, one in given.items()
    }


@pytest.fixture(scope="module", params=OPTIONS)
def stages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    return Stages(request.param, tmp_path_factory.mktemp("tower"))


def test_histories_of_any_length_and_any_candidates_have_torchs_scores(stages: Stages) -> None:
    program = stages.split.program
    for user in (program.request, program.whole or program.request):
        modules = [one for graph in (user, program.pair) for one in graph.modules()]
        kinds = HeadsPass, PairPass
        found = [sum(isinstance(one, kind) for one in modules) for kind in kinds]
        calls = [one.passes.kinds for one in modules if isinstance(one, JoinedPasses)]
        found[0] += sum(of_one.count(Attending) for of_one in calls)
        assert tuple(found) == PASSES[stages.architecture]
    if stages.architecture in JOINED:
        [call] = calls
        kinds_of_call = RowStepping, Attending, PairBiasing
        assert tuple(map(call.count, kinds_of_call)) == JOINED[stages.architecture]
        assert program.whole is not None
        others = [
            node
            for node in program.whole.graph.nodes
            if node.op == "call_function" and node.target is not operator.getitem
        ]
        assert len(others) == 1
    for length, candidates in ((0, 3), (1, 1), (5, 1000), (MAX_LENGTH, 6)):
        given = stages.request(length, candidates)
        expected = stages.expected(given)
        wholes = [stages.of_stages(given, whole=True)] if length else []
        for one in (stages.of_stages(given), stages.of_the_whole(given), *wholes):
            torch.testing.assert_close(one, expected, rtol=0, atol=1e-5)


def test_one_call_for_both_stages_has_the_bits_of_two(stages: Stages) -> None:
    can = stages.architecture in JOINED
    for length, candidates in ((1, 1), (5, 100), (MAX_LENGTH, 6), (MAX_LENGTH, 1000)):
        given = stages.request(length, candidates)
        found = stages.together(given)
        assert (found is not None) == can
        if found is not None:
            assert torch.equal(found, stages.of_stages(given, whole=True))
    if can:
        given["embeddings"] = given["embeddings"][:, :-1]
        with pytest.raises(InputError, match="expected fp32 of"):
            stages.together(given)


def test_a_request_has_the_same_scores_alone_and_among_others(stages: Stages) -> None:
    given = [stages.request(*sizes) for sizes in ((MAX_LENGTH, 6), (0, 3), (5, 100), (1, 1))]
    alone = torch.cat([stages.of_stages(one) for one in given])
    together = stages.of_stages(*given)
    # Apart: request by request. Else the layers on top have all candidates at once, in torch's
    # products, which may round by how many there are.
    tolerance = 0 if stages.split.apart else 2e-6
    torch.testing.assert_close(together, alone, rtol=0, atol=tolerance)


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_an_input_that_is_no_number_has_the_scores_of_torch(stages: Stages, strange: float) -> None:
    for name in ("history", *companions(stages.architecture), "embeddings"):
        for row in (0, 5, MAX_LENGTH - 1):
            given = stages.request(MAX_LENGTH, 4)
            if name == "embeddings":
                given[name][row % 4, 2] = strange
            else:
                given[name][0, row, 0] = strange
            expected = stages.expected(given)
            both = [stages.of_stages(given, whole=whole) for whole in (False, True)]
            for one in (*both, stages.of_the_whole(given)):
                torch.testing.assert_close(one, expected, rtol=0, atol=1e-5, equal_nan=True)
