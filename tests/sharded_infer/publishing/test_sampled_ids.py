from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.engines.model import open_model
from sharded_infer.errors import RequestError, SpecError, WeightsError
from sharded_infer.inputs.id_policy import InputPolicy
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.publishing.quantization import open_format_plan, quantize
from sharded_infer.publishing.sampled_ids import mapped_samples, with_frequencies
from sharded_infer.quality.fp32_model import Fp32Model
from sharded_infer.quality.quality import CalibrationSamples
from sharded_infer.samples.statistics import statistics_of
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, TableSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.raw_ids import SPEC, RawModel, Sum, publish_raw, raw_request, source_of

ITEM = TableSpec("item", rows=8, dim=2, id_map=IdMapSpec("error"))
TINY = ModelSpec("tiny", (ITEM,))
KNOWN = {10**12: 7, -5: 0, 77: 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    return publish_raw(tmp_path_factory.mktemp("raw"))


@pytest.mark.parametrize("weighted", [(), ("clicked", "shop")], ids=str)
def test_samples_are_mapped_as_the_published_version_maps_them(
    raw: RawModel, weighted: tuple[str, ...]
) -> None:
    model = open_model(raw.path)
    inputs, _ = raw_request(raw, 40, 7, weighted=weighted)
    sources = {name: source_of(entries) for name, entries in raw.maps.items()}
    found = mapped_samples(SPEC, make_input(SPEC, inputs), sources)
    wanted = InputPolicy(model.spec, model.id_maps).apply(make_input(SPEC, inputs))
    assert found.ids_checked and found.ids_unknown == wanted.ids_unknown != ()
    for one, other in zip(found.groups, wanted.groups, strict=True):
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.lengths, other.lengths)
        assert (one.weights is None) == (other.weights is None)
        assert one.weights is None or np.array_equal(one.weights, other.weights)


def test_an_unknown_id_is_refused_or_left_out() -> None:
    samples, sources = [{"item": [77, 6]}, {"item": -5}], {"item": source_of(KNOWN)}
    words = "feature 'item', sample 0: id 6 is not in the id map of table 'item'"
    with pytest.raises(RequestError, match=words):
        mapped_samples(TINY, samples, sources)
    (group,) = mapped_samples(TINY, samples, sources, leave_out=True).groups
    assert group.values.tolist() == [1, 0] and group.lengths.tolist() == [[1, 1]]
    rows = replace(TINY, tables=(*TINY.tables, TableSpec("shop", rows=3, dim=1)))
    (group,) = mapped_samples(rows, [{"item": 77, "shop": [3, 2]}], sources, leave_out=True).groups
    assert group.values.tolist() == [1, 2]


def test_an_unknown_id_of_a_sequence_is_no_row() -> None:
    samples, sources = [{"item": [77, 6, -5]}, {"item": [77]}], {"item": source_of(KNOWN)}
    spec = replace(TINY, sequences={"item": SequenceSpec(9, features=("item",))})
    mapped = mapped_samples(spec, samples, sources, leave_out=True)
    assert mapped.groups[0].values.tolist() == [1, -1, 0, 1]
    counted = statistics_of(spec, mapped)["item"]
    assert counted.pooling_factor == 1.5 and sum(counted.histogram) == pytest.approx(1)
    frequencies = with_frequencies(spec, samples, sources)["item"].frequencies
    assert frequencies is not None
    [(rows, counts)] = frequencies()
    assert rows.tolist() == [0, 1] and counts.tolist() == [1, 2]


def test_maps_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SpecError, match="table 'item': has an id map without ids"):
        mapped_samples(TINY, [{"item": 77}], {})
    with pytest.raises(WeightsError, match="id 77 .* has row 8, expected one of 8 rows"):
        mapped_samples(TINY, [{"item": -5}], {"item": source_of({-5: 0, 77: 8})})
    ids, rows = np.array([77, 77]), np.array([0, 1])
    twice = replace(source_of({}), count=2, read=lambda: iter([(ids, rows)]))
    with pytest.raises(WeightsError, match="table 'item': a test's map: id 77 occurs twice"):
        mapped_samples(TINY, [{"item": 77}], {"item": twice})


def test_statistics_of_mapped_samples_say_which_rows_are_read() -> None:
    samples = [{"item": [77, 77]}, {"item": [10**12, 6]}]
    mapped = mapped_samples(TINY, samples, {"item": source_of(KNOWN)}, leave_out=True)
    found = statistics_of(TINY, mapped)["item"]
    assert found.pooling_factor == 1.5
    assert found.histogram == (0, 2 / 3, 0, 0, 0, 0, 0, 1 / 3)
    assert statistics_of(TINY, samples)["item"].histogram == ()


def test_quantize_scores_calibration_samples_with_raw_ids(tmp_path: Path) -> None:
    spec = replace(TINY, dense=SPEC.dense)
    weights = {"item": torch.randn(8, 2, generator=torch.Generator().manual_seed(1))}
    samples = {
        "item": np.array([[77, 10**12], [-5, 77]]),
        "age": np.zeros((2, 1), np.float32),
    }
    asked, sources = make_input(spec, samples), {"item": source_of(KNOWN)}
    plan = open_format_plan(spec, weights)
    scores = Fp32Model(plan.spec, plan.weights, Sum()).scores(mapped_samples(spec, asked, sources))
    assert np.allclose(
        scores["score"],
        weights["item"][torch.tensor([[1, 7], [0, 1]])].sum(1).mean(1).numpy(),
        atol=1e-6,
    )
    with pytest.raises(SpecError, match="table 'item': has an id map without ids"):
        quantize(plan, tmp_path / "q", tower=Sum(), calibration=CalibrationSamples(asked))
    assert not (tmp_path / "q").exists()
    report = quantize(
        plan,
        tmp_path / "q",
        tower=Sum(),
        calibration=CalibrationSamples(asked),
        id_maps=sources,
    )
    assert report.calibration is not None and report.calibration.samples == 2
    assert 0 < report.calibration.mixes[1].max_score_diff < 0.02
