import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.row_format import RowFormat
from quant.sources.table_weight import find_weight
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.spec_draft import count_checks, draft_spec
from sharded_infer.importing.tower_source import load_tower
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.spec_file import load_spec, parse_spec
from sharded_infer.zoo.registry import build_tower
from tests.support.torchrec_models import DENSE_WIDTH, TABLES, Table, TorchRec

ONE_FEATURE_EACH = [Table(t.name, t.rows, t.dim, t.features[:1]) for t in TABLES]


def drafted(weights: Mapping[str, Tensor], name: str = "clicks") -> ModelSpec:
    return parse_spec(tomllib.loads(draft_spec(TensorSource(weights), name)))


def checks_of(weights: Mapping[str, Tensor]) -> list[str]:
    draft = draft_spec(TensorSource(weights), "clicks")
    lines = [line for line in draft.splitlines() if "# CHECK: " in line]
    assert count_checks(draft) == len(lines)
    return lines


def zoo_weights(prefix: str, kind: str, **options: Any) -> dict[str, Tensor]:
    tower = build_tower(kind, dense_inputs={"dense": 3}, feature_dims=[4, 4], options=options)
    return {prefix + name: value for name, value in tower.state_dict().items()}


@pytest.mark.parametrize(
    ("architecture", "expected"),
    [
        ("DLRM", {"bottom": [6, 8], "top": [7, 4, 1]}),
        ("DLRM_DCN", {"bottom": [6, 8], "top": [7, 4, 1], "cross_layers": 3, "cross_rank": 2}),
    ],
)
def test_a_torchrec_checkpoint_becomes_a_spec_of_its_tables_and_tower(
    architecture: str, expected: dict[str, object], rec: TorchRec, tmp_path: Path
) -> None:
    state = rec.model(architecture, ONE_FEATURE_EACH).state_dict()
    source = TensorSource({f"module.{key}": value for key, value in state.items()})
    path = tmp_path / "model.toml"
    path.write_text(draft_spec(source, "clicks"))
    spec = load_spec(path)
    assert spec.name == "clicks"
    assert [(t.name, t.rows, t.dim, t.weights) for t in spec.tables] == [
        (t.name, t.rows, t.dim, None) for t in TABLES
    ]
    assert spec.dense.inputs == {"dense": DENSE_WIDTH}
    assert spec.tower.options == expected
    assert spec.tower.weights == "module."
    for table in spec.tables:
        find_weight(source, table.name, table.weights, rows=table.rows, dim=table.dim)
    load_tower(spec, source, tmp_path)


def test_what_a_checkpoint_cannot_say_is_marked_on_its_line(rec: TorchRec) -> None:
    lines = checks_of(rec.model("DLRM", ONE_FEATURE_EACH).state_dict())
    fields = [line.partition(" = ")[0] for line in lines]
    assert fields.count("pooling") == fields.count("features") == 3
    assert [f for f in fields if f not in {"pooling", "features"}] == [
        "# CHECK: tables, and each one's features, in the order of their embeddings in the "
        "tower's input",
        "format",
        "precision",
    ]


@pytest.mark.parametrize("architecture", ["DLRM", "DLRM_DCN"])
def test_features_that_are_missing_are_counted(architecture: str, rec: TorchRec) -> None:
    (line,) = [x for x in checks_of(rec.model(architecture).state_dict()) if "the tower takes" in x]
    assert "6 features of dim 8, 48 numbers in all" in line and "give 24" in line


@pytest.mark.parametrize("dim", [8, 16, 32, 48, 64, 128, 256])
def test_quantized_rows_without_a_tower_are_guessed_and_marked(dim: int) -> None:
    width = -(-(dim + 4) // 16) * 16
    weights = {"embedding_bags.ads.weight": torch.zeros(5, width, dtype=torch.uint8)}
    (table,) = drafted(weights).tables
    assert (table.rows, table.dim, table.format) == (5, dim, RowFormat.INT8)
    assert [x for x in checks_of(weights) if x.startswith(f"dim = {dim}  # CHECK: of int8 rows")]
    source = TensorSource(weights)
    found = find_weight(source, "ads", None, rows=5, dim=dim, row_format=table.format)
    assert found.stored is RowFormat.INT8


def test_keys_with_emb_are_tables_and_other_matrices_are_not() -> None:
    weights = {
        "model.user_embedding.weight": torch.zeros(4, 3),
        "emb_l.0.weight": torch.zeros(6, 2),
        "emb_l.1.weight": torch.zeros(7, 2),
        "fc.weight": torch.zeros(9, 9),
        "emb_counts": torch.zeros(9, 9, dtype=torch.int64),
        "emb_scale": torch.zeros(9),
        "emb_empty": torch.zeros(0, 9),
        "emb_wide": torch.zeros(1, 8193),
        "emb_deep": torch.zeros(2, 3, 4),
        "emb_narrow": torch.zeros(3, 4, dtype=torch.uint8),
        "emb_flags": torch.zeros(3, 4, dtype=torch.bool),
        "emb_phases": torch.zeros(3, 4, dtype=torch.complex64),
    }
    spec = drafted(weights)
    assert [(t.name, t.weights, t.rows, t.dim) for t in spec.tables] == [
        ("user_embedding", "model.user_embedding.weight", 4, 3),
        ("emb_l_0", "emb_l.0.weight", 6, 2),
        ("emb_l_1", "emb_l.1.weight", 7, 2),
    ]
    assert not [line for line in checks_of(weights) if line.startswith("name")]
    draft = draft_spec(TensorSource(weights), "clicks")
    for line in (
        "# CHECK: 'fc.weight' [9, 9] is left out: 'fc' in its key is a layer's",
        "# CHECK: 'emb_counts' [9, 9] is left out: of int64 numbers",
        "# CHECK: 'emb_wide' [1, 8193] is left out: wider than 8192",
        "# CHECK: 'emb_narrow' [3, 4] is left out: too narrow for quantized rows",
        "# CHECK: 'emb_flags' [3, 4] is left out: of bool numbers",
        "# CHECK: 'emb_phases' [3, 4] is left out: of complex64 numbers",
        "# 'emb_deep' [2, 3, 4] is left out: of 3 axes",
        "# 'emb_empty' [0, 9] is left out: empty",
        "# 1 weight more: 1 (of 1 axis)",
    ):
        assert line in draft.splitlines()


def test_matrices_that_could_be_tables_are_all_named_and_others_counted_by_kind() -> None:
    weights = {"embedding_bags.a.weight": torch.zeros(10, 4)}
    weights |= {f"other{n}.w": torch.zeros(8, 8) for n in range(60)}
    weights |= {f"optim.state.{n}.exp_avg": torch.zeros(8, 8) for n in range(50)}
    weights |= {f"l{n}.{kind}": torch.zeros(4) for n in range(3) for kind in ("bias", "scale")}
    draft = draft_spec(TensorSource(weights), "clicks")
    assert all(f"'other{n}.w' [8, 8] is left out: its key is" in draft for n in range(60))
    assert draft.count("is left out: an optimizer's state") == 40
    assert "# 16 weights more: 6 (of 1 axis), 10 (an optimizer's state)\n" in draft


@pytest.mark.parametrize("prefix", ["optim.state", "app.opt.state"])
def test_states_by_numbers_are_no_tables(prefix: str) -> None:
    weights = {f"model.{name}_emb.weight": torch.zeros(4, 3) for name in ("user", "item")}
    for number in range(2):
        for state in ("square_avg", "exp_avg", "sum"):
            weights[f"{prefix}.{number}.{state}"] = torch.zeros(4, 3)
    assert [table.name for table in drafted(weights).tables] == ["user_emb", "item_emb"]
    assert f"# '{prefix}.0.sum' [4, 3] is left out: an optimizer's" in draft_spec(
        TensorSource(weights), "clicks"
    )
    # A model of that name.
    (table,) = drafted({"optim_net.user_emb.weight": torch.zeros(4, 3)}).tables
    assert table.weights == "optim_net.user_emb.weight"


@pytest.mark.parametrize("place", ["optimizer.state", "state"])
@pytest.mark.parametrize(
    ("prefix", "cut"), [("model.", ""), ("ebc.embedding_bags.", ""), ("model.", "model.")]
)
def test_no_optimizers_state_is_a_table_and_every_matrix_has_a_line(
    prefix: str, cut: str, place: str
) -> None:
    weights = {f"{prefix}emb_{n}.weight": torch.zeros(4, 3) for n in range(2)}
    states = {
        f"{place}.{key.removeprefix(cut)}.{state}": key
        for key in weights
        for state in ("exp_avg", "momentum1")
    }
    others = dict.fromkeys([*states, "linear.fc.weight"], torch.zeros(4, 3))
    draft = draft_spec(TensorSource(weights | others), "clicks")
    spec = parse_spec(tomllib.loads(draft))
    assert [table.name for table in spec.tables] == ["emb_0", "emb_1"]
    for key, of in states.items():
        assert f"# '{key}' [4, 3] is left out: an optimizer's state of '{of}'" in draft
    assert "# CHECK: 'linear.fc.weight' [4, 3] is left out: 'linear' in its key" in draft


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("dlrm", {"bottom": [5, 4], "top": [6, 1]}),
        ("dcnv2", {"bottom": [5], "top": [6, 2, 1], "cross_layers": 2, "cross_rank": 3}),
    ],
)
@pytest.mark.parametrize("prefix", ["tower.", "", "model.dense."])
def test_our_own_towers_are_found_under_any_prefix(
    architecture: str, options: dict[str, Any], prefix: str
) -> None:
    weights = zoo_weights(prefix, architecture, **options)
    weights |= {"C1": torch.zeros(9, 4), "C2": torch.zeros(8, 4)}
    spec = drafted(weights)
    assert [table.name for table in spec.tables] == ["C1", "C2"]
    assert (spec.tower.architecture, spec.tower.options) == (architecture, options)
    assert (spec.tower.weights, spec.dense.inputs) == (prefix, {"dense": 3})
    assert not [line for line in checks_of(weights) if "the tower takes" in line]
    load_tower(spec, TensorSource(weights), Path())


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("top.layers.0.weight", (1, 6), "6 inputs, which no number of features"),
        ("C1", (9, 5), r"features of dim 4, not of \[4, 5\]"),
        ("top.layers.0.bias", (1,), None),
    ],
)
def test_wrong_widths_are_marked(name: str, shape: tuple[int, ...], words: str | None) -> None:
    weights = zoo_weights("", "dlrm", bottom=[4], top=[1])
    weights |= {"C1": torch.zeros(9, 4), "C2": torch.zeros(8, 4), name: torch.zeros(shape)}
    checks = "\n".join(checks_of(weights))
    assert bool(re.search(words or "the tower takes|has . inputs", checks)) == (words is not None)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("embedding_bags.user id.weight", "user_id"),
        ("embedding_bags.-1.weight", "table_-1"),
        ("embedding_bags.__metadata__.weight", "table___metadata__"),
        (f"embedding_bags.{'x' * 300}.weight", "x" * 150),
        ('emb"\n\\\x7f\t', "emb_____"),
    ],
)
def test_a_table_whose_name_is_none_gets_one_and_keeps_its_key(key: str, name: str) -> None:
    weights = {key: torch.zeros(4, 3)}
    (table,) = drafted(weights).tables
    assert (table.name, table.weights) == (name, key)
    assert [line for line in checks_of(weights) if line.startswith("name") and "cannot be" in line]


def test_linear_terms_have_the_feature_of_the_table_beside_them() -> None:
    weights = {
        "embedding_dict.user.weight": torch.zeros(30, 8),
        "embedding_dict.city.weight": torch.zeros(9, 8),
        "linear.embedding_dict.user.weight": torch.zeros(30, 1),
        # As many rows as none of its name.
        "linear.embedding_dict.city.weight": torch.zeros(7, 1),
    }
    features = [table.features for table in drafted(weights).tables]
    assert features == [("user",), ("city",), ("user",), ("city_2",)]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("pos_emb.weight", "positions and times are the tower's"),
        ("encoder.position_embedding.weight", "positions and times are the tower's"),
        ("time_emb.weight", "positions and times are the tower's"),
        ("model.embeddings.3.weight", "which feature is number 3?"),
    ],
)
def test_tables_that_may_have_no_ids_or_no_name_are_doubted(key: str, words: str) -> None:
    assert any(words in line for line in checks_of({key: torch.zeros(5, 4)}))
    assert not any(words in line for line in checks_of({"positive_emb.weight": torch.zeros(5, 4)}))


def test_a_checkpoint_without_matrices_is_refused_with_what_it_holds() -> None:
    with pytest.raises(WeightsError, match="no weight of two axes.*only 'bias'"):
        draft_spec(TensorSource({"bias": torch.zeros(3)}), "clicks")


@given(
    st.dictionaries(
        st.text(max_size=12) | st.sampled_from(["embedding_bags.a.weight", "emb", "top.x"]),
        st.tuples(
            st.lists(st.integers(0, 20), max_size=3),
            st.sampled_from([torch.float32, torch.uint8, torch.int64, torch.float16]),
        ),
        max_size=8,
    )
)
def test_whatever_a_checkpoint_holds_the_draft_parses_or_is_refused(
    shapes: dict[str, tuple[list[int], torch.dtype]],
) -> None:
    weights = {key: torch.zeros(shape, dtype=dtype) for key, (shape, dtype) in shapes.items()}
    try:
        draft = draft_spec(TensorSource(weights), "clicks")
    except WeightsError:
        return
    spec = parse_spec(tomllib.loads(draft))
    for table in spec.tables:
        sizes: dict[str, Any] = {"rows": table.rows, "dim": table.dim, "row_format": table.format}
        find_weight(TensorSource(weights), table.name, table.weights, **sizes)


class Plain(torch.nn.Module):
    """Embeddings among layers of many kinds, none of them under known names."""

    def __init__(self) -> None:
        super().__init__()
        self.user = torch.nn.Embedding(30, 4)
        self.genre_emb = torch.nn.EmbeddingBag(12, 4)
        self.emb_norm = torch.nn.Linear(4, 4)
        self.history = torch.nn.GRU(4, 5, bias=False)
        self.attention = torch.nn.MultiheadAttention(4, 2, bias=False)
        self.first = torch.nn.Linear(8, 6)
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(6, 6, bias=False))
        self.mlp = torch.nn.Sequential(torch.nn.Linear(6, 3, bias=False))


def test_layers_are_left_out_with_the_reason_and_embeddings_taken() -> None:
    state = Plain().state_dict()
    assert [(t.name, t.rows, t.dim) for t in drafted(state).tables] == [
        ("user", 30, 4),
        ("genre_emb", 12, 4),
    ]
    draft = draft_spec(TensorSource(state), "clicks")
    for words in (
        r"# 'first.weight' \[6, 8\] is left out: a linear layer's, with 'first.bias' of its length",
        r"'emb_norm.weight'.* is left out",
        r"'history.weight_ih_l0'.* is left out.*recurrent",
        r"# CHECK: 'mlp.0.weight' \[3, 6\].* is left out.*'mlp' in its key",
    ):
        assert re.search(words, draft), words
    assert [x for x in checks_of(state) if x.startswith('name = "user"') and "embedding table" in x]


@pytest.mark.parametrize(
    ("dtype", "stored"), [(torch.int8, "int8"), (torch.quint4x2, "int4"), (torch.quint2x4, "int2")]
)
def test_quantized_tables_take_their_dim_from_the_tower_and_their_format_from_themselves(
    dtype: torch.dtype, stored: str, rec: TorchRec
) -> None:
    tables = [Table(t.name, t.rows, 64, t.features[:1]) for t in TABLES]
    state = rec.quantized(rec.model("DLRM", tables), dtype).state_dict()
    assert {(t.dim, t.format) for t in drafted(state).tables} == {(64, stored)}
    assert not [line for line in checks_of(state) if line.startswith(("dim", "format"))]
    alone = {key: value for key, value in state.items() if "embedding_bags" in key}
    assert {t.format for t in drafted(alone).tables} == {stored}


def test_another_interaction_is_named_and_the_tables_are_drafted(rec: TorchRec) -> None:
    state = rec.model("DLRM_Projection").state_dict()
    spec = drafted(state)
    assert (len(spec.tables), spec.tower.architecture) == (3, None)
    assert [line for line in checks_of(state) if "inter_arch.interaction_branch1" in line]


def test_quantized_rows_that_can_be_of_several_formats_are_marked(rec: TorchRec) -> None:
    state = rec.quantized(rec.model("DLRM", ONE_FEATURE_EACH)).state_dict()
    assert {(t.dim, t.format) for t in drafted(state).tables} == {(8, RowFormat.INT8)}
    lines = [line for line in checks_of(state) if line.startswith("format")]
    assert len(lines) == 3
    assert all("rows of 16 bytes can be int8 or int4 or int2 or fp16" in line for line in lines)


def test_scales_that_are_kept_apart_are_marked() -> None:
    weights = {
        "embedding_bags.ads.weight": torch.zeros(5, 64, dtype=torch.uint8),
        "embedding_bags.ads.weight_qscale": torch.zeros(5, 1),
    }
    assert [x for x in checks_of(weights) if "scales are kept apart" in x and "format" in x]


def test_a_second_tower_is_marked() -> None:
    options = {"bottom": [4], "top": [1]}
    weights = zoo_weights("a.", "dlrm", **options) | zoo_weights("tower.", "dlrm", **options)
    weights["C1"] = torch.zeros(9, 4)
    assert drafted(weights).tower.weights == "tower."
    draft = checks_of({**weights, **zoo_weights("b.", "dlrm", **options)})
    assert not [line for line in draft if line.startswith("weights")]
    del weights["tower.bottom.layers.0.weight"]
    weights |= zoo_weights("b.", "dlrm", **options)
    assert "weights = \"a.\"  # CHECK: there are towers under 'b.' too" in checks_of(weights)
