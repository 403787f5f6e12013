"""The zoo's sequence towers against naive formulas, in their padding, and through torch.export."""

import math

import pytest
import torch
from torch import Tensor, nn

from sharded_infer.towers.lowering.decomposition import decompose
from sharded_infer.zoo.bst import BST
from sharded_infer.zoo.din import DIN, ActivationUnit
from sharded_infer.zoo.history import SequenceSizes, time_buckets
from sharded_infer.zoo.hstu import HSTU
from sharded_infer.zoo.registry import ARCHITECTURES, build_tower
from sharded_infer.zoo.sasrec import SASRec

DIM, ACTION, MAX_LENGTH = 8, 4, 12
WIDTH = DIM + ACTION
OPTIONS: dict[str, dict[str, object]] = {
    "din": {"attention": 6, "top": [7, 1]},
    "sasrec": {"blocks": 2, "heads": 2},
    "sasrec-forward": {"blocks": 2, "heads": 2},
    "bst": {"heads": 2, "time_buckets": 40, "top": [16, 1]},
    "hstu": {"layers": 2, "heads": 2, "time_buckets": 40, "top": [7, 1]},
}
TOWERS = pytest.mark.parametrize("architecture", OPTIONS)
LENGTHS = (3, 0, 5, 1)


def companions(architecture: str) -> tuple[str, ...]:
    found = ARCHITECTURES[architecture].companions
    assert found is not None
    return found


def pooled_dims(architecture: str) -> tuple[int, ...]:
    return (DIM,) if architecture.startswith("sasrec") else (DIM, 3)


def built(architecture: str, change: dict[str, object] | None = None) -> nn.Module:
    torch.manual_seed(0)
    sizes = SequenceSizes((DIM, ACTION), MAX_LENGTH, dict.fromkeys(companions(architecture), 1))
    tower = build_tower(
        architecture,
        dense_inputs={},
        feature_dims=pooled_dims(architecture),
        options=OPTIONS[architecture] | (change or {}),
        sequences={"history": sizes},
    )
    for parameter in tower.parameters():
        # Biases of zero, as they begin, would hide what they are added to.
        nn.init.normal_(parameter, std=0.3)
    return tower.eval()


def inputs(architecture: str, lengths: tuple[int, ...], longest: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    batch = len(lengths)
    found = {
        "history": torch.randn(batch, longest, WIDTH, generator=generator),
        "history_lengths": torch.tensor(lengths),
    }
    for name in companions(architecture):
        seconds = torch.rand(batch, longest, 1, generator=generator) * 1e6
        found[name] = seconds.sort(dim=1, descending=True).values
    width = sum(pooled_dims(architecture))
    return found | {"embeddings": torch.randn(batch, width, generator=generator)}


def scores(tower: nn.Module, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found: Tensor = tower(**given)
    return found


@TOWERS
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_what_lies_in_the_padding_does_not_matter(architecture: str, poison: float) -> None:
    tower, given = built(architecture), inputs(architecture, LENGTHS, 5)
    padding = torch.arange(5) >= given["history_lengths"].unsqueeze(1)
    poisoned = dict(given)
    for name in ("history", *companions(architecture)):
        poisoned[name] = given[name].masked_fill(padding.unsqueeze(2), poison)
    assert torch.equal(scores(tower, poisoned), scores(tower, given))


@TOWERS
def test_a_sample_is_scored_alone_as_among_others_and_with_more_padding(architecture: str) -> None:
    tower, given = built(architecture), inputs(architecture, LENGTHS, 5)
    found = scores(tower, given)
    for row, length in enumerate(LENGTHS):
        alone = {name: tensor[row : row + 1] for name, tensor in given.items()}
        for name in ("history", *companions(architecture)):
            alone[name] = alone[name][:, : max(length, 1)]
        torch.testing.assert_close(scores(tower, alone), found[row : row + 1])
    longer = dict(given)
    for name in ("history", *companions(architecture)):
        longer[name] = nn.functional.pad(given[name], (0, 0, 0, 6))
    torch.testing.assert_close(scores(tower, longer), found)


@TOWERS
def test_an_exported_tower_scores_any_batch_and_any_length(architecture: str) -> None:
    tower, given = built(architecture), inputs(architecture, LENGTHS, 5)
    batch, longest = torch.export.Dim("batch", min=1), torch.export.Dim("longest", min=1)
    shapes = {
        name: {0: batch, 1: longest} if tensor.dim() == 3 else {0: batch}
        for name, tensor in given.items()
    }
    # Refuses operators that a stored tower may not call.
    program = decompose(torch.export.export(tower, (), given, dynamic_shapes=shapes)).module()
    for lengths, most in (((1,), 1), ((12,), 12), ((0, 0), 1), (tuple(range(13)) * 20, 12)):
        given = inputs(architecture, lengths, most)
        torch.testing.assert_close(scores(program, given), scores(tower, given))


def test_dins_first_layer_is_that_of_the_concatenated_inputs() -> None:
    torch.manual_seed(0)
    unit = ActivationUnit(WIDTH, DIM, 6)
    history, candidate = torch.randn(3, 5, WIDTH), torch.randn(3, DIM)
    repeated = candidate.unsqueeze(1).expand(-1, 5, -1)
    parts = [history, repeated, history[..., :DIM] * repeated]
    weight = torch.cat([unit.step.weight, unit.candidate.weight, unit.product.weight], dim=1)
    # The released code's `h - c` as well: its columns are added to those of h and c.
    difference = torch.randn(6, DIM)
    weight = torch.cat([weight, difference], dim=1)
    weight[:, :DIM] -= difference
    weight[:, WIDTH : WIDTH + DIM] += difference
    joined = torch.cat([*parts, history[..., :DIM] - repeated], dim=2)
    hidden = unit.activation(joined @ weight.T + unit.step.bias)
    torch.testing.assert_close(unit(history, candidate), unit.last(hidden).squeeze(2))


def test_din_sums_the_weighted_steps() -> None:
    tower, given = built("din"), inputs("din", LENGTHS, 5)
    assert isinstance(tower, DIN)
    expected = []
    for row, length in enumerate(LENGTHS):
        steps, pooled = given["history"][row, :length], given["embeddings"][row]
        weights = tower.attention(steps.unsqueeze(0), pooled[None, :DIM])[0]
        expected.append(tower.top(torch.cat([(weights.unsqueeze(1) * steps).sum(0), pooled])))
    torch.testing.assert_close(tower.logits(**given), torch.cat(expected))


def test_sasrec_follows_its_formula() -> None:
    tower, given = built("sasrec"), inputs("sasrec", LENGTHS, 5)
    assert isinstance(tower, SASRec)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        steps = tower.steps(given["history"][row, :length])
        # The paper pads on the left: the last step always has the same position.
        steps = steps + tower.positions.weight[:length].flip(0)
        for block in tower.blocks:
            queries, keys, values = block.projections(block.attention_norm(steps)).chunk(3, dim=1)
            mixed = torch.zeros_like(steps)
            for head in (slice(0, DIM // 2), slice(DIM // 2, DIM)):
                for t in range(length):
                    logits = keys[: t + 1, head] @ queries[t, head] / math.sqrt(DIM // 2)
                    mixed[t, head] = torch.softmax(logits, 0) @ values[: t + 1, head]
            steps = steps + block.attended(mixed)
            steps = steps + block.feed_forward(block.feed_forward_norm(steps))
        expected = tower.norm(steps[-1]) @ given["embeddings"][row]
        torch.testing.assert_close(tower.logits(**given)[row], expected)


def test_bst_follows_its_formula_with_the_candidate_as_the_last_step() -> None:
    tower, given = built("bst"), inputs("bst", LENGTHS, 5)
    assert isinstance(tower, BST)
    block = tower.block
    for row, length in enumerate(LENGTHS):
        pooled = given["embeddings"][row]
        ages = torch.cat([given["age"][row, :length, 0], torch.zeros(1)])
        rows = torch.cat([tower.steps(given["history"][row, :length]), pooled[None, :DIM]])
        rows = rows + tower.positions(time_buckets(ages, 40))
        normed = block.attention_norm(rows)
        keys, values = block.keys_values(normed).chunk(2, dim=1)
        queries, mixed = block.query(normed), torch.zeros_like(rows)
        for head in (slice(0, DIM // 2), slice(DIM // 2, DIM)):
            logits = queries[:, head] @ keys[:, head].T / math.sqrt(DIM // 2)
            mixed[:, head] = torch.softmax(logits, 1) @ values[:, head]
        rows = rows + block.attended(mixed)
        rows = rows + block.feed_forward(block.feed_forward_norm(rows))
        expected = tower.top(torch.cat([rows[-1], pooled, rows[-1] * pooled[:DIM]]))[0]
        torch.testing.assert_close(tower.logits(**given)[row], expected)


def test_hstu_follows_its_formula() -> None:
    tower, given = built("hstu"), inputs("hstu", LENGTHS, 5)
    assert isinstance(tower, HSTU)
    for row, length in enumerate(LENGTHS):
        if not length:
            continue
        steps, ages = tower.steps(given["history"][row, :length]), given["age"][row, :length, 0]
        for layer in tower.layers:
            inner = nn.functional.silu(layer.inputs(layer.norm(steps)))
            gates, values, queries, keys = inner.chunk(4, dim=1)
            mixed = torch.zeros_like(steps)
            for head in (slice(0, DIM // 2), slice(DIM // 2, DIM)):
                for t in range(length):
                    for s in range(t + 1):
                        score = queries[t, head] @ keys[s, head] + tower.bias.positions[t - s]
                        span = time_buckets(ages[s] - ages[t], 40)
                        weight = nn.functional.silu(score + tower.bias.times[span]) / MAX_LENGTH
                        mixed[t, head] += weight * values[s, head]
            steps = steps + layer.output(layer.attended_norm(mixed) * gates)
        user, pooled = tower.norm(steps[-1]), given["embeddings"][row]
        expected = tower.top(torch.cat([user, pooled, user * pooled[:DIM]]))[0]
        torch.testing.assert_close(tower.logits(**given)[row], expected, rtol=1e-4, atol=1e-5)


def test_time_buckets_grow_by_a_third_and_take_any_number() -> None:
    seconds = torch.tensor([-5.0, 0.0, 1.0, 1.34, 1.36, 3600.0, 1.5e8, 1e30, math.inf])
    assert time_buckets(seconds, 64).tolist()[:7] == [0, 0, 0, 0, 1, 27, 62]
    assert time_buckets(seconds, 64)[7] == 63
    anything = time_buckets(torch.tensor([math.nan, math.inf, -math.inf]), 64)
    assert ((anything >= 0) & (anything < 64)).all()
