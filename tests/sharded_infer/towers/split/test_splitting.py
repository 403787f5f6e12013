from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.specs.precision import Precision
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.split_tower import SplitTower
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.towers.split.ranking_towers import (
    DENSE,
    DIM,
    FEATURES,
    WIDTH,
    DeepFM,
    Gated,
    TwoTower,
    dcnv2,
    dlrm,
)
from tests.sharded_infer.towers.stored import Signature, load_back

TOWERS: dict[str, Callable[[], nn.Module]] = {
    "two-tower": TwoTower,
    "deepfm": DeepFM,
    "dcnv2": dcnv2,
    "gated": Gated,
}
PRECISIONS = (Precision.FP32, Precision.BF16, Precision.INT8)
# Which features are the user's.
SETS = {"first": (0, 1, 2), "last": (4, 5), "between": (0, 2, 3, 5), "all": tuple(range(FEATURES))}
# Rounding of a sum in another order, and of factors in bf16. In int8, few sums lie so near the
# middle between two bytes that the other order makes them another byte.
TOLERANCE = {Precision.FP32: 2e-6, Precision.BF16: 8e-3, Precision.INT8: 1e-3}
MOST_OTHER_BYTES = 3


def inputs(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * seed + size)
    dense = torch.randn(size, DENSE, generator=generator)
    return dense, torch.randn(size, WIDTH, generator=generator) * 0.5


@cache
def tower_of(name: str, precision: Precision) -> Tower:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        module = (TOWERS | {"dlrm": dlrm})[name]().eval()
    signature = Signature(WIDTH, {"dense": DENSE})
    return load_back(signature.export(module, precision, inputs(500, seed=1)), signature)


def runs_of(features: tuple[int, ...]) -> list[Run]:
    return [Run(feature in features, DIM) for feature in range(FEATURES)]


def split_scores(
    split: SplitTower, features: tuple[int, ...], users: Tensor, owners: Tensor, size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of pairs in two pieces, and the dense inputs and embeddings of the whole tower."""
    dense, embeddings = inputs(size)
    by_feature = embeddings.view(size, FEATURES, DIM).clone()
    by_feature[:, list(features)] = users.view(-1, FEATURES, DIM)[owners][:, list(features)]
    own = [feature for feature in range(FEATURES) if feature not in features]
    [scores] = split(
        [dense],
        by_feature[:, own].reshape(size, len(own) * DIM),
        users.view(-1, FEATURES, DIM)[:, list(features)].reshape(len(users), -1),
        owners,
        pieces=[size - 4, 4],
        request_pieces=[len(users)],
    )
    return scores, dense, by_feature.reshape(size, WIDTH)


def assert_scores_agree(found: Tensor, expected: Tensor, precision: Precision) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[precision])
    if precision is Precision.INT8:
        other = (found - expected).abs() > TOLERANCE[Precision.FP32]
        assert int(other.sum()) <= MOST_OTHER_BYTES


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("chosen", SETS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", TOWERS)
def test_a_split_tower_scores_as_the_whole_one(
    name: str, precision: Precision, chosen: str, requests: int
) -> None:
    tower, features = tower_of(name, precision), SETS[chosen]
    split = tower.split(runs_of(features))
    assert split is not None
    users = inputs(requests, seed=2)[1]
    owners = torch.arange(20) * requests // 20
    scores, dense, embeddings = split_scores(split, features, users, owners, 20)
    [expected] = tower([dense], embeddings)
    assert scores.shape == expected.shape and scores.dtype == torch.float32
    assert float(expected.std()) > 1e-3
    assert_scores_agree(scores, expected, precision)


def test_the_users_tower_is_run_once_a_request() -> None:
    split = tower_of("two-tower", Precision.FP32).split(runs_of((0, 1, 2)))
    assert split is not None
    # Both products of the user.
    assert split.program.saved_products == WIDTH // 2 * 256 + 256 * 32
    assert split.is_worthwhile(270, 1) and not split.is_worthwhile(1, 1)


def test_a_packed_layer_that_is_not_split_is_kept_once() -> None:
    tower = tower_of("dcnv2", Precision.BF16)
    split = tower.split(runs_of((0, 1)))
    assert split is not None
    whole = {id(tensor) for tensor in tower.program.buffers()}
    own = [tensor for tensor in split.program.pair.buffers() if id(tensor) not in whole]
    # The columns of the first cross, by pair: of what the bottom layers give and four features.
    assert [tensor.numel() for tensor in own] == [(64 + 4 * DIM) * 64]


@pytest.mark.parametrize("features", [(), (1, 2)])
def test_a_tower_that_would_save_no_product_stays_whole(features: tuple[int, ...]) -> None:
    assert tower_of("dlrm", Precision.FP32).split(runs_of(features)) is None


@pytest.mark.parametrize("precision", PRECISIONS)
def test_nan_in_one_users_embeddings_reaches_that_users_scores_alone(precision: Precision) -> None:
    features = SETS["last"]
    split = tower_of("dcnv2", precision).split(runs_of(features))
    assert split is not None
    users = inputs(2, seed=2)[1]
    users[1, -1] = float("nan")
    owners = torch.arange(20) // 10
    scores, _, _ = split_scores(split, features, users, owners, 20)
    assert scores[:10].isfinite().all() and scores[10:].isnan().all()
