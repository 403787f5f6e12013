import pytest
import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.dcnv2 import CrossLayer, DCNv2
from sharded_infer.zoo.dlrm import DLRM
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import AGE, build_tower

DENSE_WIDTH = 5
DLRM_OPTIONS: dict[str, object] = {"bottom": [6, 4], "top": [7, 1]}
DCNV2_OPTIONS: dict[str, object] = {
    "bottom": [6, 3],
    "top": [7, 1],
    "cross_layers": 3,
    "cross_rank": 2,
}


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


@pytest.mark.parametrize(
    ("architecture", "feature_dims", "options", "message"),
    [
        ("dlrm", (), {}, "at least one feature"),
        ("dlrm", (4, 4, 8), {}, "feature 0 has dim 4, feature 2 has dim 8"),
        ("dlrm", (8, 8), {}, r"must end with the features' dim 8, got \[6, 4\]"),
        ("dlrm", (4, 4), {"top": [3, 2]}, r"top layers must end with 1, got \[3, 2\]"),
        ("dcnv2", (), {}, "at least one feature"),
        ("dcnv2", (4, 0), {}, r"positive dims, got \[4, 0\]"),
        ("dcnv2", (4,), {"top": [2]}, r"top layers must end with 1, got \[2\]"),
        ("dcnv2", (4,), {"cross_rank": 0}, "'cross_rank' .* must be a positive integer"),
        ("dcnv2", (4,), {"cross_rank": 2.0}, "'cross_rank' .* must be a positive integer"),
    ],
)
def test_sizes_that_do_not_fit_together_are_refused(
    architecture: str, feature_dims: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    usual = DLRM_OPTIONS if architecture == "dlrm" else DCNV2_OPTIONS
    with pytest.raises(SpecError, match=message):
        built(architecture, feature_dims, usual | options)


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
        (DLRM_OPTIONS | {"top": 1}, "'top' .* must be a non-empty list .* got 1"),
        (DLRM_OPTIONS | {"top": []}, "'top' .* must be a non-empty list"),
        (DLRM_OPTIONS | {"top": [0, 1]}, "'top' .* positive integers"),
    ],
)
def test_options_that_are_unknown_missing_or_mistyped_are_named(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        built("dlrm", (4,), options)


OPTIONS: dict[str, dict[str, object]] = {
    "din": {"attention": 6, "top": [7, 1]},
    "sasrec": {"blocks": 2, "heads": 2},
    "bst": {"heads": 2, "time_buckets": 40, "top": [7, 1]},
    "hstu": {"layers": 2, "heads": 2, "time_buckets": 40, "top": [7, 1]},
    "dlrm": {"bottom": [8], "top": [1]},
}


@pytest.mark.parametrize(
    ("architecture", "feature_dims", "sizes", "options", "message"),
    [
        ("din", (), SequenceSizes((8,), 9), {}, "needs a pooled feature, the candidate"),
        ("din", (8,), SequenceSizes((), 9), {}, "got 1 pooled features and 0 in the history"),
        ("din", (8,), SequenceSizes((4, 8), 9), {}, "has dim 8, the history's first feature 4"),
        ("din", (8,), SequenceSizes((8,), 9), {"top": [7]}, r"must end with 1, got \[7\]"),
        ("sasrec", (8, 8), SequenceSizes((8,), 9), {}, "one pooled feature, the candidate, got 2"),
        ("sasrec", (8,), SequenceSizes((8,), 9), {"heads": 3}, "divide the candidate's dim 8"),
        ("bst", (8,), SequenceSizes((8,), 9, {AGE: 1}), {"heads": 5}, "dim 8, got 5"),
        ("hstu", (8,), SequenceSizes((8,), 9), {}, r"of 'history' \['age'\], got none"),
        ("hstu", (8,), SequenceSizes((8,), 9, {AGE: 2}), {}, "'age' .* a width of 1, got 2"),
        ("din", (8,), SequenceSizes((8,), 9, {AGE: 1}), {}, r"of 'history' none, got \['age'\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    architecture: str,
    feature_dims: tuple[int, ...],
    sizes: SequenceSizes,
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(SpecError, match=message):
        build_tower(
            architecture,
            dense_inputs={},
            feature_dims=feature_dims,
            options=OPTIONS[architecture] | options,
            sequences={"history": sizes},
        )


@pytest.mark.parametrize(
    ("architecture", "dense", "sequences", "message"),
    [
        ("din", {"dense": 3}, {}, r"'din' takes the dense inputs none, got \['dense'\]"),
        ("din", {}, {}, r"'din' takes the sequences \['history'\], got none"),
        ("din", {}, {"clicks": SequenceSizes((8,), 9)}, r"\['history'\], got \['clicks'\]"),
        ("dlrm", {"dense": 3}, {"history": SequenceSizes((8,), 9)}, "takes the sequences none"),
    ],
)
def test_a_tower_takes_its_sequences_and_dense_inputs_only(
    architecture: str, dense: dict[str, int], sequences: dict[str, SequenceSizes], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        build_tower(
            architecture,
            dense_inputs=dense,
            feature_dims=[8],
            options=OPTIONS[architecture],
            sequences=sequences,
        )
