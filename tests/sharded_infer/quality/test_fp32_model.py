"""The fp32 model against torch's own embedding bags and the tower as it was trained."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from quant.sources.table_weight import find_weight
from quant.sources.weight_source import TensorSource
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.errors import InputError, RequestError, TowerError
from sharded_infer.inputs.model_input import JaggedBatch, ModelInput
from sharded_infer.quality.fp32_model import fp32_scores
from sharded_infer.specs.model_spec import ModelSpec, TowerSpec

SAMPLES = 20


class Echo(nn.Module):
    def __init__(self, result: object = None) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.9)
        self.result = result

    def forward(self, *, embeddings: Tensor, **dense: Tensor) -> object:
        return self.dropout(embeddings) if self.result is None else self.result


def pooled_by_torch(spec: ModelSpec, weights: dict[str, Tensor], group: JaggedBatch) -> Tensor:
    """Every bag by torch's own operator; a weighted mean divides by the number of ids."""
    pooled = []
    ends = np.cumsum(group.lengths.sum(axis=1))
    for index, feature in enumerate(spec.features):
        table = feature.table
        part = slice(ends[index] - group.lengths[index].sum(), ends[index])
        lengths = torch.from_numpy(group.lengths[index])
        scale = None if group.weights is None else torch.from_numpy(group.weights[part])
        sums = embedding_bag(
            torch.from_numpy(group.values[part]),
            weights[table.name],
            torch.cumsum(lengths, 0) - lengths,
            mode="sum",
            per_sample_weights=scale,
        )
        pooled.append(sums / lengths.clamp(min=1)[:, None] if table.pooling == "mean" else sums)
    return torch.cat(pooled, dim=1)


def scored(
    spec: ModelSpec, weights: dict[str, Tensor], tower: nn.Module, model_input: ModelInput
) -> dict[str, np.ndarray]:
    source = TensorSource(weights)
    found = {t.name: find_weight(source, t.name, None, rows=t.rows, dim=t.dim) for t in spec.tables}
    return fp32_scores(spec, found, tower, model_input)


def echoing(spec: ModelSpec) -> ModelSpec:
    return ModelSpec(spec.name, spec.tables, spec.dense, TowerSpec())


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_bags_are_pooled_as_torch_pools_them(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], weighted: bool
) -> None:
    model_input = generate_samples(trained_spec, SAMPLES)
    (group,) = model_input.groups
    if weighted:
        weights = np.random.default_rng(0).random(len(group.values), dtype=np.float32)
        group = JaggedBatch(group.features, group.values, group.lengths, weights)
        model_input = ModelInput(SAMPLES, (group,), model_input.dense)
    scores = scored(echoing(trained_spec), trained_weights, Echo(), model_input)
    wanted = pooled_by_torch(trained_spec, trained_weights, group)
    torch.testing.assert_close(torch.from_numpy(scores["score"]), wanted)


def test_scores_are_the_trained_towers(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], trained_tower: nn.Module
) -> None:
    model_input = generate_samples(trained_spec, SAMPLES)
    scores = scored(trained_spec, trained_weights, trained_tower, model_input)
    age, context = map(torch.from_numpy, model_input.dense)
    embeddings = pooled_by_torch(trained_spec, trained_weights, model_input.groups[0])
    with torch.no_grad():
        wanted = trained_tower(user_age=age, context=context, embeddings=embeddings)
    assert list(scores) == ["click", "rating"]
    for name, score in wanted.items():
        torch.testing.assert_close(torch.from_numpy(scores[name]), score)


def test_ids_outside_follow_their_tables_policy(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor]
) -> None:
    names = [feature.name for feature in trained_spec.features]
    lengths = np.zeros((len(names), 1), np.int64)
    lengths[names.index("country")] = 3
    lengths[names.index("user")] = 2
    group = JaggedBatch(tuple(range(len(names))), np.array([7, 2, -1, 31, -1]), lengths)
    dense = tuple(np.zeros((1, n), np.float32) for n in trained_spec.dense.inputs.values())
    model_input = ModelInput(1, (group,), dense)
    scores = scored(echoing(trained_spec), trained_weights, Echo(), model_input)["score"][0]
    assert np.array_equal(scores[16:19], trained_weights["country"][2].numpy())
    user = trained_weights["user"]
    assert np.array_equal(scores[19:24], (user[0] + user[30]).numpy())


def test_a_strict_table_refuses(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor]
) -> None:
    model_input = generate_samples(trained_spec, SAMPLES)
    model_input.groups[0].values[0] = 50
    with pytest.raises(RequestError, match="feature 'ad_shown', sample .*: id 50"):
        scored(echoing(trained_spec), trained_weights, Echo(), model_input)


@pytest.mark.parametrize("training", [False, True])
def test_the_tower_is_evaluated_and_left_in_its_mode(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], training: bool
) -> None:
    tower = Echo().train(training)
    model_input = generate_samples(trained_spec, SAMPLES)
    first, again = (
        scored(echoing(trained_spec), trained_weights, tower, model_input)["score"]
        for _ in range(2)
    )
    assert np.array_equal(first, again)
    assert tower.training is training
    assert tower.dropout.training is training


@pytest.mark.parametrize("result", [{"other": torch.zeros(1)}, {}, (torch.zeros(1),), 3])
def test_other_outputs_than_the_specs_are_refused(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor], result: object
) -> None:
    model_input = generate_samples(trained_spec, SAMPLES)
    with pytest.raises(TowerError, match=r"expected the outputs \['score'\]"):
        scored(echoing(trained_spec), trained_weights, Echo(result), model_input)


def test_samples_in_several_groups_are_refused(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor]
) -> None:
    whole = generate_samples(trained_spec, SAMPLES)
    groups = whole.groups[0].select([0]), whole.groups[0].select([1, 2, 3, 4])
    split = ModelInput(SAMPLES, groups, whole.dense)
    with pytest.raises(InputError, match="expected one jagged batch of all features"):
        scored(echoing(trained_spec), trained_weights, Echo(), split)


def test_samples_that_share_a_dense_input_are_refused(
    trained_spec: ModelSpec, trained_weights: dict[str, Tensor]
) -> None:
    whole = generate_samples(trained_spec, SAMPLES)
    shared = ModelInput(SAMPLES, whole.groups, (whole.dense[0], whole.dense[1][:1]))
    with pytest.raises(InputError, match="expected 20 rows of every dense input"):
        scored(echoing(trained_spec), trained_weights, Echo(), shared)
