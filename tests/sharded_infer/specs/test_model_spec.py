import math
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.row_format import RowFormat
from sharded_infer import DenseSpec, GateSpec, ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.errors import SpecError
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.id_steps import IdStep
from sharded_infer.specs.model_spec import ServingSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.release_spec import ReleaseSpec
from sharded_infer.specs.spec_file import dump_spec, load_spec, parse_spec

FULL = """
name = "criteo_dlrm"
[[tables]]
name = "C1"
rows = 100_000
dim = 64
pooling = "mean"
features = ["clicked", "shown"]
weights = "embedding_bags.C1.weight"
format = "bf16"
out_of_range = "modulo"
[[tables]]
name = "C2"
rows = 7
dim = 3
[dense]
inputs = { age = 1, context = 13 }
[tower]
architecture = "dlrm"
bottom = [512, 64]
top = [1024, 1]
precision = "bf16"
outputs = ["score"]
weights = "model.tower."
[quantization]
format = "int8"
[gate]
max_score_diff = 0.001
"""
EXPECTED = ModelSpec(
    name="criteo_dlrm",
    tables=(
        TableSpec(
            "C1",
            rows=100_000,
            dim=64,
            pooling="mean",
            features=("clicked", "shown"),
            weights="embedding_bags.C1.weight",
            format=RowFormat.BF16,
            out_of_range="modulo",
        ),
        TableSpec("C2", rows=7, dim=3),
    ),
    dense=DenseSpec({"age": 1, "context": 13}),
    tower=TowerSpec(
        architecture="dlrm",
        precision=Precision.BF16,
        outputs=("score",),
        weights="model.tower.",
        options={"bottom": [512, 64], "top": [1024, 1]},
    ),
    quantization=QuantizationSpec(RowFormat.INT8),
    gate=GateSpec(0.001),
)
SMALL: dict[str, Any] = {"name": "m", "tables": [{"name": "a", "rows": 4, "dim": 6}]}


AT = "table 'a':"
NO_ROW = f'{AT} default_row: expected "zeros" or'


def small_with_table(**fields: object) -> dict[str, Any]:
    return {**SMALL, "tables": [SMALL["tables"][0] | fields]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.toml"


def test_a_full_description_is_read_from_toml(path: Path) -> None:
    path.write_text(FULL)
    assert load_spec(path) == EXPECTED


def test_a_name_and_a_table_are_enough() -> None:
    spec = parse_spec(SMALL)
    assert spec == ModelSpec("m", (TableSpec("a", rows=4, dim=6),))
    assert (spec.tables[0].pooling, spec.tables[0].out_of_range) == (None, "error")
    assert spec.row_format(spec.tables[0]) is RowFormat.INT8
    assert spec.tower.outputs == ("score",)


def test_features_follow_the_order_of_tables_and_default_to_the_tables_name() -> None:
    names = [(feature.name, feature.table.name) for feature in EXPECTED.features]
    assert names == [("clicked", "C1"), ("shown", "C1"), ("C2", "C2")]
    assert EXPECTED.embedding_width == 64 + 64 + 3


def test_a_feature_of_several_tables_is_one_input_and_columns_for_each() -> None:
    tables = (
        TableSpec("gmf", rows=9, dim=2, features=("user",)),
        TableSpec("item", rows=5, dim=3),
        TableSpec("wide", rows=9, dim=1, features=("item", "user")),
    )
    spec = ModelSpec("m", tables)
    names = [(feature.name, feature.table.name) for feature in spec.features]
    assert names == [("user", "gmf"), ("item", "item"), ("item", "wide"), ("user", "wide")]
    assert spec.sparse_inputs == ("user", "item")
    assert spec.embedding_width == 2 + 3 + 1 + 1


@pytest.mark.parametrize(
    ("fields", "required"),
    [
        ({}, set()),
        ({"required": False}, set()),
        ({"required": []}, set()),
        ({"required": True}, {"a"}),
        ({"features": ["b", "c"], "required": True}, {"b", "c"}),
        ({"features": ["b", "c"], "required": ["c"]}, {"c"}),
    ],
)
def test_a_table_says_which_of_its_features_are_required(
    fields: dict[str, Any], required: set[str]
) -> None:
    document = small_with_table(**fields)
    document["tables"].append({"name": "d", "rows": 3, "dim": 1, "features": ["a", "b", "c"]})
    spec = parse_spec(document)
    assert spec.required_inputs == required
    assert parse_spec(dump_spec(spec)) == spec
    assert ("required" in dump_spec(spec)["tables"][0]) == bool(required)


@pytest.mark.parametrize(
    ("row_format", "dim", "stored"),
    [
        *(("int8", 1, "fp16"), ("int8", 4, "fp16"), ("int8", 5, "int8"), ("fp8", 2, "fp16")),
        *(("int4", 2, "fp16"), ("int4", 3, "fp16"), ("int4", 4, "int4")),
        *(("bf16", 1, "bf16"), ("fp32", 1, "fp32")),
    ],
)
def test_rows_too_narrow_for_the_default_are_fp16(row_format: str, dim: int, stored: str) -> None:
    tables = [{"name": "a", "rows": 4, "dim": dim}]
    spec = parse_spec({**SMALL, "tables": tables, "quantization": {"format": row_format}})
    assert spec.row_format(spec.tables[0]) == stored
    # What is asked for by name is done.
    asked = replace(spec.tables[0], format=RowFormat(row_format))
    assert spec.row_format(asked) == row_format


@pytest.mark.parametrize("row", ["zeros", [1, -2.5, 0, 1e-30, 3e38, 0.1]])
def test_a_default_row_is_written_and_read_back(row: object) -> None:
    spec = parse_spec(small_with_table(default_row=row))
    dumped = dump_spec(spec)
    assert dumped["tables"][0]["default_row"] == row
    assert parse_spec(dumped) == spec
    assert parse_spec(tomllib.loads(spec.to_toml())) == spec


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_default_row_is_finite_in_python_too(number: float) -> None:
    with pytest.raises(SpecError, match='^TableSpec: .*expected "zeros" or finite numbers of fp32'):
        TableSpec("a", rows=4, dim=2, default_row=(0.0, number))


def test_a_table_without_padding_is_written_as_before_there_was_any() -> None:
    names = {"name", "rows", "dim", "features", "out_of_range"}
    assert set(dump_spec(parse_spec(SMALL))["tables"][0]) == names


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tables": SMALL["tables"]}, "name: Field required"),
        ({"name": "m"}, "tables: Field required"),
        ({"name": "m", "tables": []}, "tables: .* at least 1 item"),
        ({**SMALL, "colour": 3}, "colour: Unexpected keyword argument, got 3"),
        (small_with_table(rowz=3), "table 'a': rowz: Unexpected .*'rows'.*, got 3"),
        *(
            (small_with_table(padding_idx=n), f"{AT} padding_idx: expected a row, 0 to 3, got {n}")
            for n in (-1, 4, 2**70)
        ),
        *(
            (small_with_table(required=value), "table 'a': required: expected true, false or names")
            for value in (1, "a", [1], {"a": True})
        ),
        (
            small_with_table(features=["b", "c"], required=["a"]),
            "table 'a': required: 'a' is not one of the table's features: b, c",
        ),
        *(
            (small_with_table(default_row=row), f"{NO_ROW} finite numbers of fp32, got")
            for row in ("zero", 0, True, {"a": 0}, [0, "1"], [0, True], [0, 1e39], [0, None])
        ),
        *(
            (small_with_table(default_row=[0.5] * count), f"{NO_ROW} 6 numbers, got {count}")
            for count in (0, 5, 7)
        ),
        *(
            (small_with_table(id_steps=steps), f"{AT} id_steps: {words}")
            for steps, words in (
                ({"a": [["hash", 2]]}, r"a\[0\]\[0\]: .*'add', 'multiply', .*, got 'hash'"),
                ({"a": [["add", 2.5]]}, r"a\[0\]\[1\]: .* valid integer, got 2.5"),
                ({"a": [["add", True]]}, r"a\[0\]\[1\]: .* valid integer, got True"),
                ({"a": [["add", 2**63]]}, r"a\[0\]\[1\]: .* less than 9223372036854775808"),
                ({"a": [["add"]]}, r"a\[0\]\[1\]: Field required"),
                ({"a": [["add", 1, 2]]}, r"a\[0\]: .* at most 2 items"),
                ({"a": []}, "a: .* at least 1 item"),
                ({"a": [["add", 1]] * 17}, "a: .* at most 16 items"),
                ({"b": [["add", 1]]}, "'b' is not one of the table's features: a"),
                ({"a": [["remainder", -3]]}, "a: remainder: expected .* at least 1, got -3"),
                ({"a": [["divide", 0]]}, "a: divide: expected a number of at least 1, got 0"),
            )
        ),
        (
            small_with_table(id_steps={"a": [["add", 1]]}, id_map={"unknown": "zero"}),
            f"{AT} id_steps: expected none beside id_map",
        ),
        (small_with_table(padding_idx=True), "table 'a': padding_idx: .* valid integer"),
        ({**SMALL, "serving": {"non_finit": 1}}, "non_finit: .*did you mean 'non_finite'"),
        (small_with_table(rows=0), "table 'a': rows: .* greater than or equal to 1, got 0"),
        (small_with_table(rows=2**48), "table 'a': rows: .* less than 281474976710656"),
        (small_with_table(dim=0), "table 'a': dim: .* greater than or equal to 1, got 0"),
        (small_with_table(dim=8193), "table 'a': dim: .* less than or equal to 8192, got 8193"),
        (small_with_table(pooling="max"), "table 'a': pooling: .* 'sum' or 'mean', got 'max'"),
        (small_with_table(format="int3"), "table 'a': format: .* 'int4' or 'int2', got 'int3'"),
        (
            small_with_table(out_of_range="wrap"),
            "table 'a': out_of_range: .* 'error', 'ignore' or 'modulo', got 'wrap'",
        ),
        (small_with_table(features=["b", "c d"]), r"table 'a': features\[1\]: 'c d' is not a name"),
        (small_with_table(features=["b", "b"]), "table 'a': feature 'b' is defined more than once"),
        ({**SMALL, "tables": SMALL["tables"] * 2}, "table 'a' is defined more than once"),
        ({**SMALL, "dense": {"inputs": {"a": 1}}}, "input 'a' is defined more than once"),
        ({**SMALL, "dense": {"inputs": {"x": 0}}}, "dense: inputs: x: .* equal to 1, got 0"),
        ({**SMALL, "dense": {"inputs": {"x/y": 1}}}, "dense: inputs: x/y: .* is not a name"),
        ({**SMALL, "tower": {"outputs": []}}, "tower: outputs: .* at least 1 item"),
        ({**SMALL, "tower": {"outputs": ["s", "s"]}}, "tower: outputs: names repeat"),
        (
            {**SMALL, "tower": {"precision": "fp8"}},
            "tower: precision: .* 'fp32', 'tf32', 'bf16', 'fp16' or 'int8'",
        ),
        ({**SMALL, "tower": {"program": "t", "bottom": [3]}}, "tower: bottom: Unexpected keyword"),
        ({**SMALL, "tower": {"program": "t", "architecture": "dlrm"}}, "exclude each other"),
        ({**SMALL, "gate": {"max_score_diff": 0}}, "gate: max_score_diff: .* greater than 0"),
        ({**SMALL, "gate": {"max_score_diff": math.inf}}, "gate: max_score_diff: .* finite"),
        ({**SMALL, "release": {"max_error_rate": 1.5}}, "error_rate: .*less than or equal to 1"),
        ({**SMALL, "release": {"max_p99_ratio": 0.9}}, "max_p99_ratio: .* or equal to 1"),
        ({**SMALL, "release": {"max_score_shift": 0}}, "max_score_shift: .*greater than 0"),
        ({**SMALL, "release": {"max_unknown_ids": -0.1}}, "max_unknown_ids: .* or equal to 0"),
    ],
)
def test_an_error_names_its_field_and_what_came(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"^spec: .*{words}"):
        parse_spec(fields)


@pytest.mark.parametrize(
    ("unknown", "words"),
    [
        ("hash", r"Input should be 'error' or 'zero', got 'hash'; .* an object, got 'hash'"),
        (0, "Input should be 'error' or 'zero', got 0;"),
        ({"row": 7}, r"SharedRows: row: Unexpected .* \(did you mean 'rows'\?\), got 7"),
    ],
)
def test_an_error_of_one_of_several_forms_says_what_came(unknown: object, words: str) -> None:
    with pytest.raises(SpecError, match=f"^spec: table 'a': id_map: unknown: .*{words}"):
        parse_spec(small_with_table(id_map={"unknown": unknown}))


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\\b", "a b", ".a", "a.", "a..b", "-a", "a\n", "å", "a#0", "a" * 201],
)
def test_what_could_leave_a_folder_or_blur_two_names_is_no_name(name: str) -> None:
    with pytest.raises(SpecError, match="is not a name"):
        parse_spec({**SMALL, "name": name})
    with pytest.raises(SpecError, match="is not a name"):
        parse_spec(small_with_table(name=name))


@pytest.mark.parametrize(
    "name", ["x.lengths", "x.weights", "sparse.x", "dense.x", "score.x", "__metadata__"]
)
def test_names_that_inputs_and_files_need_are_reserved(name: str) -> None:
    for fields in (
        small_with_table(name=name),
        small_with_table(features=[name]),
        {**SMALL, "dense": {"inputs": {name: 1}}},
        {**SMALL, "tower": {"outputs": [name]}},
    ):
        with pytest.raises(SpecError, match=f"'{name}' is reserved"):
            parse_spec(fields)


@pytest.mark.parametrize("content", [b"name = ", b"[[tables]\n", b"\xff\xfe", b"{}"])
def test_a_file_that_is_not_toml_is_refused_by_path(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(SpecError, match=f"{path}: not TOML"):
        load_spec(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "is_stored"),
    [
        ("serving", "remote_sums", None, False),
        ("serving", "remote_sums", "fp32", False),
        ("serving", "remote_sums", "bf16", True),
        ("serving", "memory", "auto", False),
        ("serving", "memory", "map", True),
        ("release", "max_error_rate", None, False),
        ("release", "max_error_rate", 0.01, True),
    ],
)
def test_later_settings_are_stored_only_where_older_readers_would_be_wrong(
    section: str, key: str, value: object, is_stored: bool
) -> None:
    document = small_with_table()
    if value is not None:
        document[section] = {key: value}
    spec = parse_spec(document)
    stored = dump_spec(spec)
    assert stored.get(section, {}).get(key) == (value if is_stored else None)
    assert ("release" in stored) == (section == "release" and is_stored)
    assert parse_spec(stored) == spec


def with_ids(*ids: str, table: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A model with a sequence of features a and b of table t."""
    own = {"name": "t", "rows": 9, "dim": 2, "features": ["a", "b", "c"], **(table or {})}
    sequence = {"max_length": 4, "features": ["a", "b"], "ids": list(ids)}
    return {"name": "m", "tables": [own], "sequences": {"s": sequence}, **more}


def test_ids_of_a_sequence_are_inputs_of_the_tower_and_stored_where_there_are_any() -> None:
    spec, without = parse_spec(with_ids("b", "a")), parse_spec(with_ids())
    assert spec.sequences["s"].inputs("s") == ("s", "s_lengths", "b_ids", "a_ids")
    assert spec.tower_sequences["s"].ids == ("b", "a")
    assert [feature.name for feature in spec.input_features] == ["c", "a", "b", "b", "a"]
    assert spec.sparse_inputs == ("c", "a", "b")
    assert dump_spec(spec)["sequences"]["s"]["ids"] == ["b", "a"]
    assert "ids" not in dump_spec(without)["sequences"]["s"]
    for parsed in (spec, without):
        assert parse_spec(dump_spec(parsed)) == parsed
        assert parse_spec(tomllib.loads(parsed.to_toml())) == parsed


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (with_ids("c"), "sequences: s: ids: 'c' is not one of the sequence's features: a, b"),
        (with_ids("a", "a"), "sequences: s: ids: feature 'a' is named more than once"),
        (
            with_ids("a", table={"id_map": {"unknown": "zero"}}),
            "sequences: s: ids: expected features whose ids are rows, got 'a' of table 't', which",
        ),
        (with_ids("a", dense={"inputs": {"a_ids": 1}}), "'a_ids' has the name of a table or anot"),
        (with_ids("a", table={"name": "a_ids"}), "'a_ids' has the name of a table or another inp"),
        (
            with_ids(
                "a",
                tables=[
                    {"name": "t", "rows": 9, "dim": 2, "features": ["a", "b"]},
                    {"name": "d", "rows": 9, "dim": 2},
                ],
                sequences={
                    "s": {"max_length": 4, "features": ["a", "b"], "ids": ["a"]},
                    "a_ids": {"max_length": 4, "features": ["d"]},
                },
            ),
            "'a_ids' has the name of a table or another input",
        ),
    ],
)
def test_ids_that_no_tower_could_get_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=f"^spec: .*{words}"):
        parse_spec(fields)


def test_a_feature_whose_ids_would_have_too_long_a_name_is_refused() -> None:
    name = "a" * 197
    fields = with_ids(name, table={"features": [name, "b"]})
    fields["sequences"]["s"]["features"] = [name, "b"]
    with pytest.raises(SpecError, match="ids: expected names of at most 196 characters, got 'aaa"):
        parse_spec(fields)


def test_steps_of_ids_are_stored_only_where_there_are_some() -> None:
    spec = parse_spec(small_with_table(id_steps={"a": [["divide", 2], ["add", -1]]}))
    assert spec.tables[0].id_steps == {"a": (("divide", 2), ("add", -1))}
    assert dump_spec(spec)["tables"][0]["id_steps"] == {"a": [["divide", 2], ["add", -1]]}
    assert parse_spec(dump_spec(spec)) == spec
    assert "id_steps" not in dump_spec(parse_spec(SMALL))["tables"][0]
    # Tables are members of sets.
    assert len({spec.tables[0], *parse_spec(SMALL).tables}) == 2


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FORMATS = st.sampled_from(RowFormat)
SHARE = st.floats(1e-300, 1e300)
STEPS: tuple[IdStep, ...] = (("multiply", -(2**63)), ("remainder", 7), ("add", -1))
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
            features=features,
            weights=draw(st.none() | TEXT),
            format=draw(st.none() | FORMATS),
            out_of_range=draw(st.sampled_from(["error", "ignore", "modulo"])),
            padding_idx=draw(st.sampled_from([None, 0])),
            required=draw(st.sampled_from([None, True])),
            default_row=draw(st.sampled_from([None, "zeros"])),
            id_steps=draw(st.sampled_from([{}, {features[-1] if features else name: STEPS}])),
        )
        for name in names
        for features in [draw(st.sampled_from([(), (f"{name}_1",), (f"{name}_1", f"{name}_2")]))]
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
