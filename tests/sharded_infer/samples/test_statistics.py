from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.model_spec import ModelSpec, TableSpec


def test_padding_is_not_read() -> None:
    spec = ModelSpec("m", (TableSpec("tag", rows=4, dim=1, padding_idx=0),))
    found = statistics_of(spec, [{"tag": [0, 3, 0, 0]}, {"tag": [0]}, {"tag": [3, 2]}])
    assert found["tag"].pooling_factor == 1.0
    assert found["tag"].histogram == (0.0, 0.0, 1 / 3, 2 / 3)


def test_a_feature_of_several_tables_is_counted_in_the_largest() -> None:
    tables = (
        TableSpec("small", rows=2, dim=1, features=("id",), out_of_range="modulo"),
        TableSpec("large", rows=4, dim=1, features=("id",)),
        TableSpec("least", rows=1, dim=1, features=("id",), out_of_range="ignore"),
    )
    found = statistics_of(ModelSpec("m", tables), [{"id": [3]}, {"id": [1]}])
    assert list(found) == ["id"]
    assert found["id"].histogram == (0.0, 0.5, 0.0, 0.5)
