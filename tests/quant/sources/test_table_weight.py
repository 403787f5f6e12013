import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from quant.sources.table_weight import FLOATING, TableWeight, find_weight
from quant.sources.weight_source import SourceError, TensorSource, WeightSource
from tests.reference.row_encoding import encode

WEIGHT = torch.arange(12.0).view(4, 3)


def found(source: WeightSource, key: str | None) -> str:
    return find_weight(source, "ads", key, rows=4, dim=3).key


def ads(weight: Tensor, row_format: RowFormat | None = None, *, dim: int = 3) -> TableWeight:
    source = TensorSource({"ads": weight})
    return find_weight(source, "ads", None, rows=4, dim=dim, row_format=row_format)


@pytest.mark.parametrize(
    "key",
    [
        *("ads", "ads.weight", "embedding_bags.ads.weight", "embeddings.ads.weight"),
        *("embedding.ads.weight", "model.sparse.embedding_bags.ads.weight"),
        *("module.ebc.embeddings.ads.weight", "module.ads.weight", "_orig_mod.ads.weight"),
        *("module._orig_mod.ads.weight", "_dmp_wrapped_module.module.ads.weight"),
    ],
)
def test_a_table_is_found_under_its_usual_names(key: str) -> None:
    others = {"bads": WEIGHT, "my_embedding_bags.ads.weight": WEIGHT, "embedding_bags.x.weight": 0}
    assert found(TensorSource(dict.fromkeys(others, WEIGHT) | {key: WEIGHT}), None) == key


@pytest.mark.parametrize("longer", ["a.embedding_bags.ads.weight", "module.ads.weight"])
def test_the_plain_name_comes_before_longer_ones(longer: str) -> None:
    source = TensorSource(dict.fromkeys([longer, "ads.weight"], WEIGHT))
    assert found(source, None) == "ads.weight"


def test_a_given_key_is_taken_and_no_other() -> None:
    source = TensorSource({"ads": WEIGHT, "tables.0": WEIGHT})
    assert found(source, "tables.0") == "tables.0"
    wrapped = TensorSource({"module.ads.weight": WEIGHT, "other.weight": WEIGHT})
    assert found(wrapped, "ads.weight") == "module.ads.weight"
    with pytest.raises(SourceError, match="table 'ads': the state dict holds no weight 'tables.1'"):
        found(source, "tables.1")


def test_an_ambiguous_name_is_refused_with_the_candidates() -> None:
    keys = ["old.embedding_bags.ads.weight", "new.embedding_bags.ads.weight"]
    words = f"table 'ads': several weights .*: {keys[1]}, {keys[0]}; say which with .*'weights'"
    with pytest.raises(SourceError, match=words):
        found(TensorSource(dict.fromkeys(keys, WEIGHT)), None)
    wrapped = dict.fromkeys(["module.ads.weight", "_orig_mod.ads.weight"], WEIGHT)
    with pytest.raises(SourceError, match="several weights.*_orig_mod.ads.weight, module.ads"):
        found(TensorSource(wrapped), None)


def test_a_missing_table_is_refused_with_what_there_is() -> None:
    words = r"'ads': .* holds none of 'ads', .*; it holds x, y; .*\(TableSpec\(weights=\.\.\.\)\)"
    with pytest.raises(SourceError, match=words):
        found(TensorSource({"y": WEIGHT, "x": WEIGHT}), None)


def test_only_the_first_names_are_shown_of_many() -> None:
    source = TensorSource(dict.fromkeys([f"t{n}" for n in range(9)], WEIGHT))
    with pytest.raises(SourceError, match="it holds t0, t1, t2, t3, t4, t5, t6, t7, ..."):
        found(source, None)


def test_another_shape_is_refused() -> None:
    words = r"table 'ads': the spec says 4 rows of dim 4, but 'ads' .* is \[4, 3\]"
    with pytest.raises(SourceError, match=words):
        ads(WEIGHT, dim=4)
    with pytest.raises(SourceError, match=r"4 rows of dim 3, but 'ads' .* is \[3, 3\]"):
        ads(WEIGHT[1:])
    for shape in ([12], [0, 3], [4, 3, 1], []):
        with pytest.raises(SourceError, match="4 rows of dim 3, but 'ads' in the state dict is"):
            ads(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_another_dtype_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(SourceError, match=f"'ads' in the state dict is {dtype}, expected one of"):
        ads(WEIGHT.to(dtype))


@pytest.mark.parametrize("dtype", FLOATING)
def test_every_float_is_read_as_fp32(dtype: torch.dtype) -> None:
    weight = ads(WEIGHT.to(dtype))
    assert (weight.key, weight.rows, weight.dim, weight.stored) == ("ads", 4, 3, None)
    rows = weight.read(1, 3)
    assert rows.dtype is torch.float32 and torch.equal(rows, WEIGHT[1:3])


@pytest.mark.parametrize("row_format", RowFormat)
@pytest.mark.parametrize("alignment", [1, 16])
@pytest.mark.parametrize("dim", [3, 8, 21])
def test_quantized_rows_are_read_unpadded(row_format: RowFormat, alignment: int, dim: int) -> None:
    stored = encode(row_format, torch.randn(4, dim, generator=torch.Generator().manual_seed(0)))
    padded = pad(stored, (0, -stored.shape[1] % alignment), value=255)
    weight = ads(padded, row_format, dim=dim)
    assert weight.stored is row_format
    assert torch.equal(weight.read_stored(1, 3), stored[1:3])
    assert torch.equal(weight.read(1, 3), decode(row_format, stored, dim)[1:3])


@pytest.mark.parametrize("row_format", [RowFormat.FP32, RowFormat.INT4, RowFormat.INT2])
def test_a_width_that_only_one_format_has_says_which_it_is(row_format: RowFormat) -> None:
    assert ads(encode(row_format, torch.ones(4, 100)), dim=100).stored is row_format


def test_a_width_that_formats_of_ours_have_too_is_that_of_the_usual_one() -> None:
    assert ads(encode(RowFormat.INT8, torch.ones(4, 100)), dim=100).stored is RowFormat.INT8
    assert ads(encode(RowFormat.FP16, torch.ones(4, 100)), dim=100).stored is RowFormat.FP16
    fp8 = encode(RowFormat.FP8, torch.ones(4, 100))
    assert ads(fp8, RowFormat.FP8, dim=100).stored is RowFormat.FP8


def test_a_width_that_several_formats_have_is_refused_without_a_format() -> None:
    padded = pad(encode(RowFormat.INT4, torch.ones(4, 4)), (0, 10))
    words = "table 'ads': .* rows of 16 bytes can be .*int8 or int4.*say which with .* 'format'"
    with pytest.raises(SourceError, match=words):
        ads(padded, dim=4)
    with pytest.raises(SourceError, match="can be fp8 or int8, not int4 as the spec says"):
        ads(encode(RowFormat.INT8, torch.ones(4, 100)), RowFormat.INT4, dim=100)


def test_another_width_or_number_of_quantized_rows_is_refused() -> None:
    with pytest.raises(SourceError, match="4 quantized rows of 5 bytes each, expected 4 of"):
        ads(torch.zeros(4, 5, dtype=torch.uint8), dim=100)
    words = r"3 quantized rows of 104 bytes each, expected 4 of 104 or 112 bytes \(int8\)"
    with pytest.raises(SourceError, match=words):
        ads(torch.zeros(3, 104, dtype=torch.uint8), RowFormat.INT8, dim=100)
