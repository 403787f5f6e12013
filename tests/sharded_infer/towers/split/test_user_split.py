import pytest
import torch
from torch import Tensor

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.compiled_products import CompiledProduct
from sharded_infer.towers.lowering.sequences.pair_layers import PairPass
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_split import UserSplit, check_user_split
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.sequence_towers import DIM, LONGEST, TOWERS, USER, inputs_of
from tests.sharded_infer.towers.test_sequences import BOUNDS, tower_of

USERS = ("user", "history")
COLUMNS = (Run(True, USER), Run(False, DIM))
SHARED = ("user", "history", "history_lengths", "age")
# Which stages share one vector a request: these are run for the candidates of all requests at once.
STACKED = {"mean", "hstu", "rotary"}
# Sums in another order.
TOLERANCE = 2e-6

Request = dict[str, Tensor]


def requests(lengths: tuple[int, ...], counts: tuple[int, ...], fixed: bool) -> list[Request]:
    """Each request's user, with one row, and its candidates."""
    found = []
    for number, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        inputs = inputs_of(count, LONGEST if fixed else length, seed=number + 5)
        inputs["history_lengths"][:] = length
        inputs["embeddings"][:, :USER] = inputs["embeddings"][0, :USER].clone()
        found.append(inputs | {name: inputs[name][:1] for name in SHARED})
    return found


def user_of(split: UserSplit, request: Request) -> tuple[Tensor, ...]:
    return split.user([request[name] for name in SHARED], request["embeddings"][:1, :USER])


def scores_of(split: UserSplit, given: list[Request], pieces: tuple[int, ...] = ()) -> Tensor:
    items = torch.cat([request["item"] for request in given])
    own = torch.cat([request["embeddings"][:, USER:] for request in given])
    counts = [len(request["item"]) for request in given]
    users = [user_of(split, request) for request in given]
    [scores] = split.candidates([items], own, users, counts, pieces=pieces)
    return scores


def whole_scores(tower: Tower, request: Request) -> Tensor:
    count = len(request["item"])
    inputs = {
        name: one.expand(count, *one.shape[1:]) if name in SHARED else one
        for name, one in request.items()
    }
    *dense, embeddings = inputs.values()
    [scores] = tower(dense, embeddings)
    return scores


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_in_two_stages_scores_as_the_whole_one(name: str) -> None:
    tower = tower_of(name)
    split = tower.split_user(USERS, COLUMNS)
    assert split.apart == (name not in STACKED)
    given = requests((LONGEST, 1, 5, 7), (6, 1, 30, 2), name == "recurrent")
    found = scores_of(split, given)
    expected = torch.cat([whole_scores(tower, request) for request in given])
    assert float(expected.std()) > 1e-3
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)
    in_pieces = scores_of(split, given, pieces=(10, 29))
    torch.testing.assert_close(in_pieces, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "precision"),
    [("target attention", Precision.BF16), ("hstu", Precision.BF16), ("din", Precision.INT8)],
)
def test_a_low_precision_tower_in_two_stages_scores_close_to_the_whole_one(
    name: str, precision: Precision
) -> None:
    tower = tower_of(name, precision)
    split = tower.split_user(USERS, COLUMNS)
    given = requests((LONGEST, 4), (9, 9), fixed=False)
    expected = torch.cat([whole_scores(tower, request) for request in given])
    torch.testing.assert_close(
        scores_of(split, given), expected, rtol=0, atol=BOUNDS[precision] / 2
    )


@pytest.mark.parametrize("name", ["target attention", "hstu"])
def test_a_users_stage_has_the_same_bits_whoever_else_is_in_the_batch(name: str) -> None:
    split = tower_of(name).split_user(USERS, COLUMNS)
    first, second = requests((7, 3), (4, 4), fixed=False)
    kept = user_of(split, first)
    again = [user_of(split, one) for one in (second, first)][1]
    assert all(torch.equal(one, other) for one, other in zip(kept, again, strict=True))
    alone = scores_of(split, [first])
    together = scores_of(split, [second, first])[4:]
    torch.testing.assert_close(alone, together, rtol=0, atol=TOLERANCE)


def test_keys_of_the_history_are_made_once_a_request() -> None:
    split = tower_of("target attention").split_user(USERS, COLUMNS)
    names = [getattr(node.target, "__name__", "") for node in split.program.pair.graph.nodes]
    assert names.count("attention_to_shared") == 1
    history, lengths = torch.randn(1, 5, DIM), torch.tensor([5])
    user = split.user(
        [torch.randn(1, 3), history, lengths, torch.randn(1, 5, 1)], torch.randn(1, 8)
    )
    # Keys and values by head, the mask, and the user's share of the layers on top.
    assert sorted(tuple(one.shape) for one in user) == [
        (1, 2, 1, 5),
        (1, 2, 5, 8),
        (1, 2, 5, 8),
        (1, 64),
    ]


def test_of_a_layer_over_the_pair_only_the_products_part_is_for_each_pair() -> None:
    split = tower_of("din").split_user(USERS, COLUMNS)
    kinds = {type(module).__name__ for module in split.program.pair.modules()}
    if "CompiledProduct" not in kinds:
        pytest.skip("this machine has no compiled products")
    products = [m for m in split.program.pair.modules() if isinstance(m, CompiledProduct)]
    # Of cat(item, history, item - history, item * history): the item's columns, for one position.
    widths = [module.product.weight.shape for module in products]
    assert widths.count((36, DIM)) == 1 and (36, 4 * DIM) not in widths
    # Those of the product are in the pass.
    [one] = (m for m in split.program.pair.modules() if isinstance(m, PairPass))
    assert [tuple(layer.weight.shape) for layer in one.layers.layers] == [(36, DIM), (1, 36)]


def test_a_split_that_scores_otherwise_is_refused() -> None:
    tower = tower_of("mean")
    split = tower.split_user(USERS, COLUMNS)
    with pytest.raises(TowerError, match="output 0 of the split tower differs"):
        check_user_split(split, tower_of("hstu"), tower.inputs)
