from pathlib import Path

import pytest
import torch

from quant.sources.checkpoint import open_weights
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import parse_spec
from tests.sharded_infer.importing.test_torchrec_model import assert_same_scores
from tests.support.torchrec_models import DENSE_WIDTH, TABLES, TorchRec

LAYERS: dict[str, object] = {"bottom": [6, 8], "top": [7, 4, 1]}
SIZES = {
    "DLRM": {"architecture": "dlrm", **LAYERS},
    "DLRM_DCN": {"architecture": "dcnv2", **LAYERS, "cross_layers": 3, "cross_rank": 2},
}
PREFIXES = ("", "module.", "_dmp_wrapped_module.module.", "dlrm.", "model.", "_orig_mod.")


def spec_of(architecture: str, **tower: object) -> ModelSpec:
    tables = [
        {"name": t.name, "rows": t.rows, "dim": t.dim, "features": t.features}
        | {"pooling": t.pooling.lower()}
        for t in TABLES
    ]
    dense, sizes = {"inputs": {"dense": DENSE_WIDTH}}, {**SIZES[architecture], **tower}
    return parse_spec({"name": "clicks", "tables": tables, "dense": dense, "tower": sizes})


@pytest.mark.parametrize("architecture", SIZES)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_saved_torchrec_tower_gives_the_sigmoid_of_its_logits(
    architecture: str, prefix: str, rec: TorchRec, tmp_path: Path
) -> None:
    model = rec.model(architecture)
    torch.save({prefix + k: v for k, v in model.state_dict().items()}, tmp_path / "model.pt")
    tower = load_tower(spec_of(architecture), open_weights(tmp_path / "model.pt"), tmp_path)
    assert assert_same_scores(tower, model, rec).std() > 0.01


def test_of_two_torchrec_towers_the_spec_must_name_one(rec: TorchRec) -> None:
    models = {"a.": rec.model("DLRM"), "b.": rec.model("DLRM")}
    state = {p + k: v for p, model in models.items() for k, v in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"'a\.', 'b\.'; say which with the spec's tower.weigh"):
        load_tower(spec_of("DLRM"), TensorSource(state), Path())
    tower = load_tower(spec_of("DLRM", weights="b."), TensorSource(state), Path())
    assert_same_scores(tower, models["b."], rec)


def test_a_prefix_that_is_given_and_wrong_is_refused_with_the_right_one(rec: TorchRec) -> None:
    state = {f"model.{k}": v for k, v in rec.model("DLRM").state_dict().items()}
    with pytest.raises(WeightsError, match=r"no 'ours\.bottom.*TorchRec tower under 'model\.'"):
        load_tower(spec_of("DLRM", weights="ours."), TensorSource(state), Path())


@pytest.mark.parametrize(
    ("architecture", "changed", "words"),
    [
        ("DLRM", {"bottom": [8]}, (r"_mlp\.0\._linear\.weight' is \[6, 5\], expected \[8, 5\]",)),
        ("DLRM", {"bottom": [6, 8, 8]}, (r"no 'dense_arch\.model\._mlp\.2", r"shape \[8, 8\]")),
        ("DLRM", {"top": [7, 1]}, (r"over_arch\.model\.1\.weight' is \[1, 4\]", r"\[1, 7\]")),
        ("DLRM", {"top": [7, 4, 1, 1]}, (r"no 'over_arch\.model\.0\._mlp\.2",)),
        ("DLRM_DCN", {"cross_layers": 2}, (r"crossnet\..*\.2' of shape .* has no place",)),
        ("DLRM_DCN", {"cross_rank": 3}, (r"V_kernels\.0' is \[2, 56\], expected \[3, 56\]",)),
    ],
)
def test_sizes_that_are_not_the_checkpoints_name_the_key_and_both_shapes(
    architecture: str, changed: dict[str, object], words: tuple[str, ...], rec: TorchRec
) -> None:
    source = TensorSource(rec.model(architecture).state_dict(), "clicks.pt")
    with pytest.raises(WeightsError, match=r"under the prefix '' in clicks\.pt") as raised:
        load_tower(spec_of(architecture, **changed), source, Path())
    for word in words:
        assert raised.match(word)
