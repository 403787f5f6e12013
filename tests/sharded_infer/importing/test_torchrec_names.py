from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from quant.sources.checkpoint import open_weights
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.spec_draft import draft_spec
from sharded_infer.importing.torchrec_names import (
    pair_vectors,
    read_parameters,
    reorder_pairs,
    table_of,
    torchrec_name,
    torchrec_prefixes,
)
from sharded_infer.importing.tower_sizes import zoo_sizes
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import load_spec, parse_spec
from sharded_infer.zoo.registry import build_tower
from tests.support.torchrec_models import (
    DENSE_WIDTH,
    TABLES,
    Table,
    TorchRec,
    make_batch,
    torchrec,
)

SIZES: dict[str, dict[str, object]] = {
    "DLRM": {"architecture": "dlrm", "bottom": [6, 8], "top": [7, 4, 1]},
    "DLRM_DCN": {
        "architecture": "dcnv2",
        "bottom": [6, 8],
        "top": [7, 4, 1],
        "cross_layers": 3,
        "cross_rank": 2,
    },
}
PREFIXES = ("", "module.", "_dmp_wrapped_module.module.", "dlrm.", "model.", "_orig_mod.")


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


def spec_of(architecture: str, **tower: object) -> ModelSpec:
    return parse_spec(
        {
            "name": "clicks",
            "tables": [
                {
                    "name": t.name,
                    "rows": t.rows,
                    "dim": t.dim,
                    "pooling": t.pooling.lower(),
                    "features": t.features,
                }
                for t in TABLES
            ],
            "dense": {"inputs": {"dense": DENSE_WIDTH}},
            "tower": {**SIZES[architecture], **tower},
        }
    )


def scores_of(
    tower: nn.Module, rec: TorchRec, model: nn.Module, tables: Sequence[Table] = TABLES
) -> tuple[Tensor, Tensor]:
    batch = make_batch(tables)
    with torch.no_grad():
        pooled = model.sparse_arch(rec.jagged(batch)).flatten(1)  # type: ignore[operator]
        ours = tower(dense=batch.dense, embeddings=pooled)
    return ours, torch.sigmoid(rec.logits(model, batch))


@pytest.mark.parametrize("architecture", SIZES)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_saved_torchrec_tower_gives_the_sigmoid_of_its_logits(
    architecture: str, prefix: str, rec: TorchRec, tmp_path: Path
) -> None:
    model = rec.model(architecture)
    torch.save({prefix + k: v for k, v in model.state_dict().items()}, tmp_path / "model.pt")
    tower = load_tower(spec_of(architecture), open_weights(tmp_path / "model.pt"), tmp_path)
    ours, theirs = scores_of(tower, rec, model)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert theirs.std() > 0.01


def test_a_tower_whose_parts_were_compiled_is_found(rec: TorchRec) -> None:
    model = rec.model("DLRM")
    state = {k.replace("_arch.", "_arch._orig_mod.", 1): v for k, v in model.state_dict().items()}
    tower = load_tower(spec_of("DLRM"), TensorSource(state), Path())
    torch.testing.assert_close(*scores_of(tower, rec, model), atol=1e-6, rtol=0)


@pytest.mark.parametrize("architecture", SIZES)
def test_half_precision_parameters_become_fp32(architecture: str, rec: TorchRec) -> None:
    state = rec.model(architecture).half().state_dict()
    tower = load_tower(spec_of(architecture), TensorSource(state), Path())
    assert {parameter.dtype for parameter in tower.parameters()} == {torch.float32}


def test_of_two_torchrec_towers_the_spec_must_name_one(rec: TorchRec) -> None:
    models = {"a.": rec.model("DLRM"), "b.": rec.model("DLRM")}
    state = {p + k: v for p, model in models.items() for k, v in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"'a\.', 'b\.'; say which with the spec's tower.weigh"):
        load_tower(spec_of("DLRM"), TensorSource(state), Path())
    tower = load_tower(spec_of("DLRM", weights="b."), TensorSource(state), Path())
    torch.testing.assert_close(*scores_of(tower, rec, models["b."]), atol=1e-6, rtol=0)


def test_a_prefix_that_is_given_and_wrong_is_refused_with_the_right_one(rec: TorchRec) -> None:
    state = {f"model.{k}": v for k, v in rec.model("DLRM").state_dict().items()}
    with pytest.raises(WeightsError, match=r"no 'ours\.bottom.*TorchRec tower under 'model\.'"):
        load_tower(spec_of("DLRM", weights="ours."), TensorSource(state), Path())


def test_our_own_names_come_before_torchrecs(rec: TorchRec) -> None:
    spec = spec_of("DLRM")
    ours = build_tower(
        "dlrm",
        dense_inputs=spec.dense.inputs,
        feature_dims=[feature.table.dim for feature in spec.features],
        options=spec.tower.options,
    )
    state = {f"tower.{k}": v for k, v in ours.state_dict().items()}
    source = TensorSource(state | rec.model("DLRM").state_dict())
    loaded = load_tower(spec, source, Path()).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in ours.state_dict().items())


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


def test_the_crosses_of_a_dcn_are_no_part_of_a_dlrm(rec: TorchRec) -> None:
    source = TensorSource(rec.model("DLRM_DCN").state_dict())
    with pytest.raises(WeightsError, match=r"\[7, 56\], expected \[7, 29\]"):
        load_tower(spec_of("DLRM"), source, Path())


def test_another_interaction_is_refused_by_its_name(rec: TorchRec) -> None:
    source = TensorSource(rec.model("DLRM_Projection").state_dict())
    with pytest.raises(WeightsError, match=r"interaction_branch1.*only those of TorchRec's DLRM"):
        load_tower(spec_of("DLRM"), source, Path())


def test_every_parameter_of_a_zoo_tower_has_a_torchrec_name_of_its_own() -> None:
    for sizes in SIZES.values():
        options = {name: size for name, size in sizes.items() if name != "architecture"}
        tower = build_tower(
            str(sizes["architecture"]),
            dense_inputs={"dense": 5},
            feature_dims=[8, 8],
            options=options,
        )
        shapes = {name: tuple(value.shape) for name, value in tower.state_dict().items()}
        assert len({torchrec_name(name, 3) for name in shapes}) == len(shapes)
        assert zoo_sizes(shapes).options == options


@given(vectors=st.integers(1, 60), extra=st.integers(1, 59))
def test_pairs_lead_back_to_their_vectors_and_nothing_else_does(vectors: int, extra: int) -> None:
    pairs = vectors * (vectors - 1) // 2
    assert pair_vectors(pairs) == (vectors if vectors > 1 else 1)
    if extra < vectors:
        assert pair_vectors(pairs + extra) is None


@given(features=st.integers(1, 7), dim=st.integers(1, 4), seed=st.integers(0, 9))
def test_reordered_pairs_weigh_the_same_products(features: int, dim: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(features + 1, dim, generator=generator, dtype=torch.float64)
    weight = torch.randn(
        3, dim + (features + 1) * features // 2, generator=generator, dtype=torch.float64
    )
    products = vectors @ vectors.T
    upper = torch.triu_indices(features + 1, features + 1, offset=1)
    lower = torch.tril_indices(features + 1, features + 1, offset=-1)
    theirs = weight @ torch.cat([vectors[0], products[*upper]])
    ours = reorder_pairs(weight, dim) @ torch.cat([vectors[0], products[*lower]])
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_a_top_of_no_number_of_features_is_refused() -> None:
    with pytest.raises(WeightsError, match=r"\[2, 6\]: 2 columns after the first 4"):
        reorder_pairs(torch.zeros(2, 6), 4)


def test_only_whole_words_before_a_name_are_a_prefix() -> None:
    name = "dense_arch.model._mlp.0._linear.weight"
    keys = [name, f"b.{name}", f"a._orig_mod.{name}", f"x{name}", f"{name}.exp_avg"]
    assert torchrec_prefixes(keys) == ["", "a.", "b."]


def test_an_optimizers_state_beside_its_parameter_is_left_alone() -> None:
    wanted = {
        name: tuple(value.shape)
        for name, value in build_tower(
            "dlrm", dense_inputs={"dense": 2}, feature_dims=[3], options={"bottom": [3], "top": [1]}
        )
        .state_dict()
        .items()
    }
    shapes = {torchrec_name(name, 1): shape for name, shape in wanted.items()}
    shapes["over_arch.model.1.weight.exp_avg"] = (1, 4)
    parameters = read_parameters(wanted, shapes, lambda name: torch.zeros(shapes[name]))
    assert set(parameters) == set(wanted)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("_dmp_wrapped_module.ebc.embedding_bags.t_user", "t_user"),
        ("sparse.ec.embeddings.t_user.weight", "t_user"),
        ("embedding_bags.t.user.weight", "t.user"),
        ("embeddings.ebc.embedding_bags.embeddings", "embeddings"),
        ("model.t_user", "t_user"),
        ("t_user", "t_user"),
    ],
)
def test_a_table_is_found_in_its_full_name(name: str, table: str) -> None:
    assert table_of(name) == table


@pytest.mark.parametrize("architecture", SIZES)
def test_a_drafted_spec_loads_the_same_tower(
    architecture: str, rec: TorchRec, tmp_path: Path
) -> None:
    # One feature a table, as a draft guesses.
    tables = [Table(t.name, t.rows, t.dim, t.features[:1]) for t in TABLES]
    model = rec.model(architecture, tables)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    source = open_weights(tmp_path / "model.pt")
    (tmp_path / "model.toml").write_text(draft_spec(source, "clicks"))
    tower = load_tower(load_spec(tmp_path / "model.toml"), source, tmp_path)
    torch.testing.assert_close(*scores_of(tower, rec, model, tables), atol=1e-6, rtol=0)
