import re

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.dcnv2 import CrossLayer, DCNv2
from sharded_infer.zoo.dlrm import DLRM
from sharded_infer.zoo.mlp import MLP
from sharded_infer.zoo.registry import ARCHITECTURES, build_tower

DENSE_WIDTH = 5
DLRM_OPTIONS: dict[str, object] = {"bottom": [6, 4], "top": [7, 1]}
DCNV2_OPTIONS: dict[str, object] = {
    "bottom": [6, 3],
    "top": [7, 1],
    "cross_layers": 3,
    "cross_rank": 2,
}
CASES = [("dlrm", (4, 4, 4), DLRM_OPTIONS), ("dcnv2", (4, 2, 5), DCNV2_OPTIONS)]


def built(
    architecture: str, feature_dims: tuple[int, ...], options: dict[str, object]
) -> nn.Module:
    torch.manual_seed(0)
    return build_tower(
        architecture,
        dense_inputs={"dense": DENSE_WIDTH},
        feature_dims=feature_dims,
        options=options,
    ).eval()


def inputs(batch: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (
        torch.randn(batch, DENSE_WIDTH, generator=generator),
        torch.randn(batch, width, generator=generator),
    )


def test_an_mlp_activates_between_layers_and_after_the_last_only_when_told() -> None:
    torch.manual_seed(0)
    plain = MLP([3, 4, 2], activate_last=False)
    torch.manual_seed(0)
    activated = MLP([3, 4, 2], activate_last=True)
    samples = torch.randn(50, 3)
    first, last = plain.layers[0], plain.layers[2]
    expected = last(torch.relu(first(samples)))
    torch.testing.assert_close(plain(samples), expected)
    torch.testing.assert_close(activated(samples), torch.relu(expected))
    assert (expected < 0).any()


@pytest.mark.parametrize("sizes", [[], [3], [3, 0], [-1, 2]])
def test_an_mlp_refuses_sizes_that_are_too_few_or_not_positive(sizes: list[int]) -> None:
    with pytest.raises(SpecError, match=re.escape(str(sizes))):
        MLP(sizes, activate_last=False)


def test_dlrm_interacts_every_pair_of_vectors_once() -> None:
    tower = built("dlrm", (4, 4, 4), DLRM_OPTIONS)
    assert isinstance(tower, DLRM)
    dense, embeddings = inputs(6, 12)
    expected = []
    for sample in range(6):
        bottom = tower.bottom(dense[sample])
        vectors = [bottom, *torch.split(embeddings[sample], 4)]
        products = [
            (vectors[row] * vectors[column]).sum()
            for row in range(len(vectors))
            for column in range(row)
        ]
        expected.append(tower.top(torch.cat([bottom, torch.stack(products)])))
    torch.testing.assert_close(tower.logits(dense, embeddings), torch.cat(expected))


def test_dcnv2_follows_the_low_rank_cross_formula() -> None:
    tower = built("dcnv2", (4, 2, 5), DCNV2_OPTIONS)
    assert isinstance(tower, DCNv2)
    dense, embeddings = inputs(6, 11)
    first = torch.cat([tower.bottom(dense), embeddings], dim=1)
    crossed = first
    for cross in tower.crosses:
        assert isinstance(cross, CrossLayer)
        v, w, b = cross.down.weight, cross.up.weight, cross.up.bias
        assert v.shape == (2, 14) and w.shape == (14, 2)
        crossed = first * (crossed @ v.T @ w.T + b) + crossed
    torch.testing.assert_close(tower.logits(dense, embeddings), tower.top(crossed)[:, 0])


@pytest.mark.parametrize(("architecture", "feature_dims", "options"), CASES)
def test_forward_is_the_probability_of_the_logits(
    architecture: str, feature_dims: tuple[int, ...], options: dict[str, object]
) -> None:
    tower = built(architecture, feature_dims, options)
    assert isinstance(tower, DLRM | DCNv2)
    dense, embeddings = inputs(9, sum(feature_dims))
    scores = tower(dense=dense, embeddings=embeddings)
    assert scores.shape == (9,) and scores.dtype == torch.float32
    torch.testing.assert_close(scores, torch.sigmoid(tower.logits(dense, embeddings)))


@pytest.mark.parametrize(("architecture", "feature_dims", "options"), CASES)
def test_an_exported_tower_scores_any_batch_as_the_module_does(
    architecture: str, feature_dims: tuple[int, ...], options: dict[str, object]
) -> None:
    tower = built(architecture, feature_dims, options)
    dense, embeddings = inputs(4, sum(feature_dims))
    batch = torch.export.Dim("batch", min=1, max=65536)
    program = torch.export.export(
        tower,
        (),
        {"dense": dense, "embeddings": embeddings},
        dynamic_shapes={"dense": {0: batch}, "embeddings": {0: batch}},
    )
    for size in (1, 2, 300):
        dense, embeddings = inputs(size, sum(feature_dims))
        with torch.no_grad():
            exported = program.module()(dense=dense, embeddings=embeddings)
            torch.testing.assert_close(exported, tower(dense, embeddings))


def test_a_dlrm_checkpoint_holds_weights_only() -> None:
    names = built("dlrm", (4, 4), DLRM_OPTIONS).state_dict()
    assert all(name.endswith(("weight", "bias")) for name in names)


@pytest.mark.parametrize(
    ("feature_dims", "options", "message"),
    [
        ((), DLRM_OPTIONS, "at least one feature"),
        ((4, 4, 8), DLRM_OPTIONS, "feature 0 has dim 4, feature 2 has dim 8"),
        ((8, 8), DLRM_OPTIONS, r"must end with the features' dim 8, got \[6, 4\]"),
        ((4, 4), {"bottom": [4], "top": [3, 2]}, r"top layers must end with 1, got \[3, 2\]"),
    ],
)
def test_dlrm_refuses_sizes_that_do_not_fit(
    feature_dims: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        built("dlrm", feature_dims, options)


@pytest.mark.parametrize(
    ("feature_dims", "change", "message"),
    [
        ((), {}, "at least one feature"),
        ((4, 0), {}, r"positive dims, got \[4, 0\]"),
        ((4,), {"top": [2]}, r"top layers must end with 1, got \[2\]"),
    ],
)
def test_dcnv2_refuses_sizes_that_do_not_fit(
    feature_dims: tuple[int, ...], change: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        built("dcnv2", feature_dims, DCNV2_OPTIONS | change)


@pytest.mark.parametrize("option", ["cross_layers", "cross_rank"])
def test_dcnv2_itself_refuses_an_empty_cross_network(option: str) -> None:
    crosses = {"cross_layers": 1, "cross_rank": 1} | {option: 0}
    with pytest.raises(SpecError, match=f"{option} must be at least 1, got 0"):
        DCNv2(dense_width=2, feature_dims=[2], bottom=[2], top=[1], **crosses)


def test_an_unknown_architecture_is_answered_with_the_nearest_and_all_known() -> None:
    known = "known: bst, dcnv2, din, dlrm, hstu, sasrec"
    with pytest.raises(SpecError, match=rf"'dlmr'; did you mean 'dlrm'\?; {known}"):
        built("dlmr", (4,), DLRM_OPTIONS)
    with pytest.raises(SpecError, match=f"unknown architecture 'zzz'; {known}"):
        built("zzz", (4,), DLRM_OPTIONS)


@pytest.mark.parametrize(
    ("dense_inputs", "message"),
    [
        ({}, "got none"),
        ({"price": 3}, r"got \['price'\]"),
        ({"dense": 3, "price": 3}, r"got \['dense', 'price'\]"),
        ({"dense": 0}, "'dense' must be a positive integer, got 0"),
    ],
)
def test_a_tower_without_a_sequence_takes_one_dense_input_named_dense(
    dense_inputs: dict[str, int], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        build_tower("dlrm", dense_inputs=dense_inputs, feature_dims=[4], options=DLRM_OPTIONS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DLRM_OPTIONS | {"botom": [4]}, r"no option 'botom'; did you mean 'bottom'\?.*bottom, top"),
        (DLRM_OPTIONS | {"cross_rank": 2}, "'dlrm' has no option 'cross_rank'; its options"),
        ({"top": [1]}, "'dlrm' needs the options bottom"),
        ({}, "needs the options bottom, top"),
        (DLRM_OPTIONS | {"top": 1}, "'top' .* must be a non-empty list .* got 1"),
        (DLRM_OPTIONS | {"top": []}, "'top' .* must be a non-empty list"),
        (DLRM_OPTIONS | {"top": ["7", 1]}, r"'top' .* got \['7', 1\]"),
        (DLRM_OPTIONS | {"top": [0, 1]}, "'top' .* positive integers"),
        (DLRM_OPTIONS | {"bottom": [True, 4]}, "'bottom' .* positive integers"),
    ],
)
def test_options_that_are_unknown_missing_or_mistyped_are_named(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        built("dlrm", (4,), options)


@pytest.mark.parametrize("value", [0, 2.0, "2", None, True])
def test_a_count_option_must_be_a_positive_integer(value: object) -> None:
    with pytest.raises(SpecError, match="'cross_rank' .* must be a positive integer"):
        built("dcnv2", (4,), DCNV2_OPTIONS | {"cross_rank": value})


def test_every_architecture_says_what_it_is() -> None:
    assert sorted(ARCHITECTURES) == ["bst", "dcnv2", "din", "dlrm", "hstu", "sasrec"]
    assert all(architecture.summary for architecture in ARCHITECTURES.values())
