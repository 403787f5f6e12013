import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer import (
    DenseSpec,
    GateSpec,
    ModelSpec,
    Precision,
    QuantizationSpec,
    ReleaseSpec,
    ServingSpec,
    TableSpec,
    TowerSpec,
    load_spec,
)
from sharded_infer.errors import SpecError
from sharded_infer.specs.feature_statistics import FeatureStatistics

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FORMATS = st.sampled_from(RowFormat)
SHARE = st.floats(1e-300, 1e300)
NAMES = [
    "user", "item_id", "C1", "a.b", "0x", "true", "inf", "tables", "x-y", "label",
]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[TableSpec, ...]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    return tuple(
        TableSpec(
            name,
            rows=draw(st.integers(1, 2**48 - 1)),
            dim=draw(st.integers(1, 8192)),
            pooling=draw(st.sampled_from(["sum", "mean"])),
            features=draw(st.sampled_from([(), (f"{name}_1",), (f"{name}_1", f"{name}_2")])),
            weights=draw(st.none() | TEXT),
            format=draw(st.none() | FORMATS),
            out_of_range=draw(st.sampled_from(["error", "ignore", "modulo"])),
            padding_idx=draw(st.sampled_from([None, 0])),
            required=draw(st.sampled_from([None, True])),
            default_row=draw(st.sampled_from([None, "zeros"])),
        )
        for name in names
    )


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    chosen = draw(tables())
    names = [table.name for table in chosen]
    features = [name for table in chosen for name in (table.features or (table.name,))]
    sizes = st.integers(1, 999) | st.lists(st.integers(1, 999), max_size=3) | TEXT | st.booleans()
    architecture = draw(st.none() | st.just("dlrm"))
    return ModelSpec(
        name=draw(st.sampled_from(NAMES)),
        tables=chosen,
        dense=DenseSpec(draw(st.dictionaries(st.sampled_from(["age", "x.y"]), st.integers(1, 99)))),
        tower=TowerSpec(
            architecture=architecture,
            program=None if architecture else draw(st.none() | TEXT),
            precision=draw(st.sampled_from(Precision)),
            outputs=draw(st.sampled_from([("score",), ("click", "buy")])),
            weights=draw(TEXT),
            options=draw(st.dictionaries(TEXT | st.just("weights"), sizes, max_size=3)),
        ),
        quantization=QuantizationSpec(
            format=draw(FORMATS),
            overrides=draw(st.dictionaries(st.sampled_from([*names, "*"]), FORMATS)),
            memory_budget=draw(st.sampled_from([None, "40GB"])),
            clip=draw(st.booleans()),
            ignore=tuple(draw(st.lists(TEXT, max_size=2))),
        ),
        gate=GateSpec(max_score_diff=draw(SHARE), max_auc_drop=draw(st.none() | SHARE)),
        statistics={
            name: FeatureStatistics(draw(st.floats(0, 1e9)), histogram=(0.5, 0.25, 1e-9))
            for name in draw(st.lists(st.sampled_from(features), unique=True))
        },
        serving=ServingSpec(max_batch=draw(st.integers(1, 4096))),
        release=ReleaseSpec(max_p99_ratio=draw(st.none() | st.floats(1, 100))),
    )


@given(specs())
def test_a_spec_is_read_back_from_its_toml(spec: ModelSpec) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.toml"
        path.write_text(spec.to_toml(), encoding="utf-8", newline="")
        assert load_spec(path) == spec == load_spec(str(path))


def test_the_toml_of_a_spec_has_what_is_not_the_default_as_people_write_it() -> None:
    spec = ModelSpec(
        "clicks",
        (TableSpec("item", 100, 8), TableSpec("user", 50, 4, pooling="mean", features=("u", "v"))),
        DenseSpec({"dense": 3}),
        TowerSpec(architecture="dlrm", options={"bottom": [8], "top": [16, 1]}),
        QuantizationSpec(overrides={"us*": RowFormat.INT4}),
    )
    assert spec.to_toml() == (
        'name = "clicks"\n\n'
        '[[tables]]\nname = "item"\nrows = 100\ndim = 8\n\n'
        '[[tables]]\nname = "user"\nrows = 50\ndim = 4\npooling = "mean"\nfeatures = ["u", "v"]\n\n'
        "[dense]\n\n[dense.inputs]\ndense = 3\n\n"
        '[tower]\narchitecture = "dlrm"\nbottom = [8]\ntop = [16, 1]\n\n'
        '[quantization]\n\n[quantization.overrides]\n"us*" = "int4"\n'
    )


def test_a_spec_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", str(tmp_path / "none.toml")):
        with pytest.raises(SpecError, match=r"none\.toml: cannot be read: No such file"):
            load_spec(path)
