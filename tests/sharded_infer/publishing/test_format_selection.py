from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.row_format import RowFormat
from quant.sources.weight_source import TensorSource
from sharded_infer.errors import SpecError, WeightsError
from sharded_infer.publishing.format_selection import FormatPlan, plan_formats
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.spec_file import parse_spec
from tests.reference.row_encoding import encode

ROWS, DIM = 200, 16
NAMES = ("ads", "user_id", "user_city")


def weights(**changes: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {n: torch.randn(ROWS, DIM, generator=generator) for n in NAMES} | changes


def planned(
    quantization: Mapping[str, Any],
    tensors: Mapping[str, Tensor] | None = None,
    statistics: Mapping[str, FeatureStatistics] | None = None,
    **table_fields: Mapping[str, Any],
) -> FormatPlan:
    tables = [
        {"name": name, "rows": ROWS, "dim": DIM, **table_fields.get(name, {})} for name in NAMES
    ]
    spec = parse_spec({"name": "m", "tables": tables, "quantization": dict(quantization)})
    return plan_formats(spec, TensorSource(tensors or weights()), statistics)


def formats(plan: FormatPlan) -> list[str]:
    return [str(table.row_format) for table in plan.tables]


def test_a_tables_own_format_comes_before_overrides_and_those_before_the_default() -> None:
    plan = planned(
        {"format": "bf16", "overrides": {"user_city": "int2", "user_*": "int4"}},
        user_id={"format": "fp16"},
    )
    assert formats(plan) == ["bf16", "fp16", "int2"]
    assert plan.reasons == {
        "ads": "the spec's default",
        "user_id": "the table's own format in the spec",
        "user_city": "the spec's override 'user_city'",
    }
    assert [table.format for table in plan.spec.tables] == ["bf16", "fp16", "int2"]
    assert plan.budget is None


def test_an_override_that_matches_no_table_is_refused() -> None:
    with pytest.raises(SpecError, match=r"quantization.overrides: 'usr_\*' matches no table"):
        planned({"overrides": {"usr_*": "int4"}})


def test_a_memory_budget_gives_the_bytes_to_the_tables_that_are_used_most() -> None:
    used = {"ads": FeatureStatistics(20.0), "user_id": FeatureStatistics(0.5)}
    # Room for one table of int8 and two of int4.
    plan = planned({"memory_budget": f"{(20 + 12 + 12) * ROWS / 1000}KB"}, None, used)
    assert formats(plan) == ["int8", "int4", "int4"]
    assert plan.budget is not None
    assert plan.budget.kind == "memory"
    assert plan.budget.bytes == sum(t.stored_bytes for t in plan.tables) == (20 + 12 + 12) * ROWS
    assert plan.budget.least_bytes == 3 * 8 * ROWS
    assert plan.budget.least_loss == 0 < plan.budget.loss
    assert "int4 would save 1.60 kB and add" in plan.reasons["ads"]
    assert "int8 would take 1.60 kB more and save" in plan.reasons["user_id"]


def test_a_mean_of_many_rows_hides_their_errors() -> None:
    used = dict.fromkeys(NAMES, FeatureStatistics(20.0))
    budget = {"memory_budget": f"{(20 + 12 + 12) * ROWS / 1000}KB"}
    plan = planned(budget, None, used, ads={"pooling": "mean"}, user_id={"pooling": "mean"})
    assert formats(plan) == ["int4", "int4", "int8"]


def test_a_budget_counts_each_row_of_a_sequence() -> None:
    tables = [{"name": name, "rows": ROWS, "dim": DIM} for name in NAMES]
    budget = {"memory_budget": f"{(20 + 20 + 12) * ROWS / 1000}KB"}
    seen = {"seen": {"max_length": 30, "features": ["ads", "user_city"]}}
    spec = parse_spec({"name": "m", "tables": tables, "quantization": budget, "sequences": seen})
    of_sequence = FeatureStatistics(20.0)
    used = {"ads": of_sequence, "user_id": FeatureStatistics(1.0), "user_city": of_sequence}
    for statistics in (used, None):
        plan = plan_formats(spec, TensorSource(weights()), statistics)
        assert formats(plan) == ["int8", "int4", "int8"]


def test_an_error_budget_is_met_with_few_bytes() -> None:
    strict, loose = planned({"error_budget": 1e-4}), planned({"error_budget": 0.05})
    assert strict.budget is not None and loose.budget is not None
    assert strict.budget.loss <= 1e-4 and loose.budget.loss <= 0.05
    assert strict.budget.bytes > loose.budget.bytes
    assert set(formats(strict)) == {"int8"}


def test_budgets_that_cannot_be_met_say_what_the_minimum_is() -> None:
    with pytest.raises(SpecError, match="smallest formats take 4800 bytes, 1000 .*takes 4.80 kB"):
        planned({"memory_budget": "1KB"})
    with pytest.raises(SpecError, match="most exact formats lose .* 1e-09 is allowed"):
        planned({"error_budget": 1e-9, "formats": ["int8", "int4"]})


def test_a_budget_leaves_the_formats_of_the_spec_alone() -> None:
    plan = planned({"memory_budget": "100KB", "overrides": {"ads": "int4"}})
    assert formats(plan) == ["int4", "fp32", "fp32"]
    with pytest.raises(SpecError, match="memory budget: the smallest"):
        planned({"memory_budget": "10KB", "overrides": {"ads": "fp32"}})


def test_rows_that_are_quantized_already_stay_as_they_are() -> None:
    quantized = encode(RowFormat.INT4, weights()["ads"])
    plan = planned({"memory_budget": "20KB"}, weights(ads=quantized))
    assert formats(plan)[0] == "int4"
    assert plan.reasons["ads"] == "taken over as it was quantized"
    assert plan.weights["ads"].stored is RowFormat.INT4
    with pytest.raises(WeightsError, match="table 'ads': .* can be int4, not int8 as the spec"):
        planned({}, weights(ads=quantized), ads={"format": "int8"})


def test_a_table_of_the_checkpoint_that_the_spec_lacks_is_refused_unless_ignored() -> None:
    tensors = {f"model.embedding_bags.{n}.weight": w for n, w in weights().items()}
    tensors["model.embedding_bags.shops.weight"] = torch.zeros(3, 4)
    with pytest.raises(WeightsError, match="table 'shops': .* describe it, or name it in"):
        planned({}, tensors)
    assert formats(planned({"ignore": ["sh*"]}, tensors)) == ["int8"] * 3


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"memory_budget": "1GB", "error_budget": 0.1}, "exclude each other"),
        ({"memory_budget": "much"}, "'much', expected a size such as '70GB'"),
        ({"error_budget": -1.0}, "greater than or equal to 0"),
        ({"formats": []}, "at least 1 item"),
        ({"overrides": {"ads": "int5"}}, "int5"),
        ({"nonfinite": "keep"}, "'refuse' or 'zero'"),
    ],
)
def test_other_settings_are_refused(quantization: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned(quantization)
