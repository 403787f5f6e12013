from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.errors import SpecError
from sharded_infer.zoo.dcnv2 import CrossLayer, DCNv2
from sharded_infer.zoo.dlrm import DLRM
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import build_tower
from tests.sharded_infer.zoo.test_sequence_towers import OPTIONS

DENSE_WIDTH = 5
DLRM_OPTIONS: dict[str, object] = {"bottom": [6, 4], "top": [7, 1]}
DCNV2_OPTIONS = DLRM_OPTIONS | {"bottom": [6, 3], "cross_layers": 3, "cross_rank": 2}
DENSE: dict[str, Any] = {"dense_inputs": {"dense": DENSE_WIDTH}, "feature_dims": (4, 4)}


def history(*dims: int, **numbers: int) -> dict[str, Any]:
    return {"sequences": {"history": SequenceSizes(dims, 9, numbers)}}


def usual(architecture: str) -> dict[str, Any]:
    if architecture not in OPTIONS:
        options = DCNV2_OPTIONS if architecture == "dcnv2" else DLRM_OPTIONS
        return {**DENSE, "options": options}
    sizes = history(8, age=1) if architecture in ("bst", "hstu") else history(8)
    return {"dense_inputs": {}, "feature_dims": (8,), "options": OPTIONS[architecture], **sizes}


def built(architecture: str, feature_dims: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return build_tower(architecture, **{**usual(architecture), "feature_dims": feature_dims}).eval()


def inputs(batch: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(batch)
    return (
        torch.randn(batch, DENSE_WIDTH, generator=generator),
        torch.randn(batch, width, generator=generator),
    )


def test_dlrm_interacts_every_pair_of_vectors_once() -> None:
    tower = built("dlrm", (4, 4, 4))
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
    tower = built("dcnv2", (4, 2, 5))
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


KNOWN = "known: bst, dcnv2, din, dlrm, hstu, sasrec"


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("dlmr", {}, rf"'dlmr'; did you mean 'dlrm'\?; {KNOWN}"),
        ("zzz", {}, f"unknown architecture 'zzz'; {KNOWN}"),
        # Sizes.
        ("dlrm", {"feature_dims": ()}, "at least one feature"),
        ("dlrm", {"feature_dims": (4, 4, 8)}, "feature 0 has dim 4, feature 2 has dim 8"),
        ("dlrm", {"feature_dims": (8, 8)}, r"must end with the features' dim 8, got \[6, 4\]"),
        ("dlrm", {"top": [3, 2]}, r"top layers must end with 1, got \[3, 2\]"),
        ("dcnv2", {"feature_dims": ()}, "at least one feature"),
        ("dcnv2", {"feature_dims": (4, 0)}, r"positive dims, got \[4, 0\]"),
        ("dcnv2", {"top": [2]}, r"top layers must end with 1, got \[2\]"),
        ("dcnv2", {"cross_rank": 0}, "'cross_rank' .* must be a positive integer"),
        ("dcnv2", {"cross_rank": 2.0}, "'cross_rank' .* must be a positive integer"),
        ("din", {"feature_dims": ()}, "needs a pooled feature, the candidate"),
        ("din", history(), "got 1 pooled features and 0 in the history"),
        ("din", history(4, 8), "has dim 8, the history's first feature 4"),
        ("din", {"top": [7]}, r"must end with 1, got \[7\]"),
        ("sasrec", {"feature_dims": (8, 8)}, "one pooled feature, the candidate, got 2"),
        ("sasrec", {"heads": 3}, "divide the candidate's dim 8"),
        ("bst", {"heads": 5}, "dim 8, got 5"),
        ("hstu", history(8), r"of 'history' \['age'\], got none"),
        ("hstu", history(8, age=2), "'age' .* a width of 1, got 2"),
        ("din", history(8, age=1), r"of 'history' none, got \['age'\]"),
        # Inputs.
        ("dlrm", {"dense_inputs": {}}, "got none"),
        ("dlrm", {"dense_inputs": {"price": 3}}, r"got \['price'\]"),
        ("dlrm", {"dense_inputs": {"dense": 3, "price": 3}}, r"got \['dense', 'price'\]"),
        ("dlrm", {"dense_inputs": {"dense": 0}}, "'dense' must be a positive integer, got 0"),
        ("dlrm", history(8), "takes the sequences none"),
        ("din", {"dense_inputs": {"dense": 3}}, r"takes the dense inputs none, got \['dense'\]"),
        ("din", {"sequences": {}}, r"'din' takes the sequences \['history'\], got none"),
        ("din", {"sequences": {"of": SequenceSizes((8,), 9)}}, r"\['history'\], got \['of'\]"),
        # Options.
        ("dlrm", {"botom": [4]}, r"no option 'botom'; did you mean 'bottom'\?.*bottom, top"),
        ("dlrm", {"cross_rank": 2}, "'dlrm' has no option 'cross_rank'; its options"),
        ("dlrm", {"options": {"top": [1]}}, "'dlrm' needs the options bottom"),
        ("dlrm", {"top": 1}, "'top' .* must be a non-empty list .* got 1"),
        ("dlrm", {"top": []}, "'top' .* must be a non-empty list"),
        ("dlrm", {"top": [0, 1]}, "'top' .* positive integers"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(
    architecture: str, changes: dict[str, Any], message: str
) -> None:
    """What is no argument is an option."""
    arguments = usual(architecture)
    for name, value in changes.items():
        if name in ("dense_inputs", "feature_dims", "options", "sequences"):
            arguments[name] = value
        else:
            arguments["options"] = arguments["options"] | {name: value}
    with pytest.raises(SpecError, match=message):
        build_tower(architecture, **arguments)
