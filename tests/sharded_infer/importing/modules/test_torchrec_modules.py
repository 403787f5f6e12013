"""Modules with TorchRec's collections inside, published by one call."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sharded_infer import from_module, open_model, publish
from sharded_infer.errors import InputError, SpecError, TowerError
from tests.support.torchrec_models import DENSE_WIDTH, Batch, TorchRec, make_batch

pytestmark = pytest.mark.rest

KEYS = ("user", "friend", "item", "ad", "last_ad", "next_ad")
WIDTH = 8 * len(KEYS)


class Regrouped(nn.Module):
    def __init__(self, rec: TorchRec) -> None:
        super().__init__()
        self.bags, self.layer = rec.collection(), nn.Linear(WIDTH + DENSE_WIDTH, 1)

    def forward(self, dense: Tensor, features: Any) -> Tensor:
        pooled: Any = self.bags(features)
        users, rest = type(pooled).regroup([pooled], [[*KEYS[:2], "next_ad"], KEYS[2:5]])
        return torch.sigmoid(self.layer(torch.cat([rest, users, dense], 1))).squeeze(1)


class ByName(Regrouped):
    def forward(self, dense: Tensor, features: Any) -> Tensor:
        pooled: Any = self.bags(features).to_dict()
        return self.layer(torch.cat([*(pooled[key] for key in reversed(KEYS)), dense], 1))


class ByModule(Regrouped):
    def __init__(self, rec: TorchRec) -> None:
        from torchrec.modules.regroup import KTRegroupAsDict

        super().__init__(rec)
        # A key in two groups; the last has only it.
        self.regroup = KTRegroupAsDict([["ad", "user"], KEYS[1:3], KEYS[4:], ["ad"]], list("abcd"))
        self.layer = nn.Linear(WIDTH + 8 + DENSE_WIDTH, 1)

    def forward(self, dense: Tensor, features: Any) -> Tensor:
        groups = self.regroup([self.bags(features)])
        return self.layer(torch.cat([*(groups[name] for name in "dcba"), dense], 1)).squeeze(1)


class Half(Regrouped):
    def __init__(self, rec: TorchRec) -> None:
        super().__init__(rec)
        self.bags.half()


class Lengths(Regrouped):
    def forward(self, dense: Tensor, features: Any) -> Tensor:
        return super().forward(dense, features) / features["user"].lengths().clamp(min=1)


class Offsets(Regrouped):
    def forward(self, dense: Tensor, features: Any) -> Tensor:
        return super().forward(dense, features) * features["user"].offsets().diff()


OWN = {"regrouped": Regrouped, "by_name": ByName, "by_module": ByModule, "half": Half}


def examples(rec: TorchRec) -> tuple[Batch, tuple[Tensor, Any]]:
    batch = make_batch()
    return batch, (batch.dense, rec.jagged(batch))


@pytest.mark.parametrize("name", ["DLRM", "DLRM_DCN", *OWN])
def test_scores_of_bags_of_any_length_are_the_modules(
    name: str, rec: TorchRec, tmp_path: Path
) -> None:
    module = OWN[name](rec).eval() if name in OWN else rec.model(name)
    _, inputs = examples(rec)
    published = publish(module, inputs, tmp_path)
    assert "compared with the trained module" in published.compared
    other = make_batch(size=9, seed=4)
    other.lengths[0, 3] += 40
    longer = np.concatenate([np.arange(40) % 7, other.values.numpy()])
    starts = np.concatenate([[0], other.lengths.flatten().cumsum(0)])
    assert starts[-1] == len(longer)
    jagged = Batch(other.features, torch.from_numpy(longer), other.lengths, other.dense)
    bags = [longer[first:last] for first, last in pairwise(starts)]
    sent = {key: bags[9 * at : 9 * at + 9] for at, key in enumerate(other.features)}
    dense = next(iter(open_model(published.path).spec.dense.inputs))
    scores = open_model(published.path).predict({dense: other.dense.numpy(), **sent})["score"]
    with torch.no_grad():
        expected = module(other.dense, rec.jagged(jagged)).flatten()
    # Rows are int8.
    np.testing.assert_allclose(scores, expected, atol=0.05 * float(expected.abs().max()))


def test_keys_are_pooled_features_of_their_tables(rec: TorchRec) -> None:
    imported = from_module(Regrouped(rec).eval(), examples(rec)[1])
    assert {(t.name, t.features, t.pooling) for t in imported.spec.tables} == {
        ("bags_embedding_bags_t_user", ("user", "friend"), "sum"),
        ("bags_embedding_bags_t_item", ("item",), "mean"),
        ("bags_embedding_bags_t_ad", ("ad", "last_ad", "next_ad"), "sum"),
    }
    assert not imported.spec.sequences
    assert [len(bag) for bag in imported.samples["user"][:2]] == [0, 3]
    # The call in the user's module, not TorchRec's own lines.
    assert "pooled: Any = self.bags(features)" in str(imported.report)


@pytest.mark.parametrize("reading", [Lengths, Offsets])
def test_scores_by_lengths_of_bags_are_refused_with_their_line(reading: Any, rec: TorchRec) -> None:
    _, (dense, features) = examples(rec)
    # Bags of one length, of which the lengths look like constants.
    ones = torch.ones(24, dtype=torch.int64)
    single = type(features)(keys=list(KEYS), values=ones, lengths=ones)
    for inputs in ((dense[:4], single), (dense, features)):
        with pytest.raises(SpecError, match=r"lengths of bags .*super\(\).forward") as caught:
            from_module(reading(rec).eval(), inputs)
        assert "pass histories as [B, L] tensors" in str(caught.value)


def test_other_uses_of_jagged_ids_are_refused(rec: TorchRec) -> None:
    batch, (dense, features) = examples(rec)

    class Values(Regrouped):
        def forward(self, dense: Tensor, features: Any) -> Tensor:
            return super().forward(dense, features) * features["user"].values()

    ones = torch.ones(24, dtype=torch.int64)
    single = type(features)(keys=list(batch.features), values=ones, lengths=ones)
    with pytest.raises(SpecError, match="key 'user' of a KeyedJaggedTensor is read by more than"):
        from_module(Values(rec).eval(), (dense[:4], single))

    class Largest(Regrouped):
        def forward(self, dense: Tensor, features: Any) -> Tensor:
            ads = features["ad"]
            rows = functional.embedding_bag(
                ads.values(), self.layer.weight.T.contiguous(), ads.offsets()[:-1], mode="max"
            )
            return super().forward(dense, features) + rows[:, 0]

    with pytest.raises(SpecError, match=r"key 'ad' .* is read by more .*functional.embedding_bag"):
        from_module(Largest(rec).eval(), (dense, features))

    class Permuted(Regrouped):
        def forward(self, dense: Tensor, features: Any) -> Tensor:
            return super().forward(dense, features.permute([1, 0, 2, 3, 4, 5]))

    with pytest.raises(TowerError, match="KeyedJaggedTensor in its own order, neither permuted"):
        from_module(Permuted(rec).eval(), (dense, features))
    weighted = type(features)(
        keys=list(batch.features),
        values=batch.values,
        lengths=batch.lengths.flatten(),
        weights=torch.ones(len(batch.values)),
    )
    with pytest.raises(InputError, match="a KeyedJaggedTensor with weights, expected ids alone"):
        from_module(Regrouped(rec).eval(), (dense, weighted))


def test_the_first_samples_of_a_long_example_are_read(rec: TorchRec) -> None:
    lengths = torch.ones(6 * 5000, dtype=torch.int64)
    # In memory for all samples this bag would be 4 TB.
    lengths[4999] = 10**8
    ids = torch.ones(1, dtype=torch.int64).expand(int(lengths.sum()))
    features = rec.sparse.KeyedJaggedTensor(list(KEYS), ids, lengths=lengths)
    imported = from_module(Regrouped(rec).eval(), (torch.rand(5000, DENSE_WIDTH), features))
    assert {len(values) for values in imported.samples.values()} == {4096 + 17}
    with pytest.raises(InputError, match=r"'user': expected .* has \(\[4999, 5\]\), got \[5000, 1"):
        from_module(Regrouped(rec).eval(), (torch.rand(4999, DENSE_WIDTH), features))


@pytest.mark.parametrize(
    ("keys", "ids", "lengths", "message"),
    [
        (["a", "b", "a"], [1] * 6, [1] * 6, "KeyedJaggedTensor with key 'a' twice"),
        (["a b", "c", "a_b"], [1] * 6, [1] * 6, "'features.a b', 'features.a_b' have one name"),
        (["a", "b"], [1.0] * 6, [3] * 2, "keys a, b with torch.float32 values, expected int64"),
        (["a", "b"], [1] * 5, [1] * 5, "of 2 keys with 5 lengths, expected one for each key"),
        (["a", "b"], [1] * 5, [3] * 2, "with 5 ids, expected 6, the sum of its lengths"),
        (["a", "b"], [], [], "of 2 keys with 0 lengths"),
    ],
)
def test_jagged_ids_that_do_not_fit_are_refused(
    keys: list[str], ids: list[Any], lengths: list[int], message: str, rec: TorchRec
) -> None:
    values = torch.tensor(ids, dtype=None if ids else torch.int64)
    features = rec.sparse.KeyedJaggedTensor(
        keys, values, lengths=torch.tensor(lengths, dtype=torch.int64)
    )
    with pytest.raises(InputError, match=message):
        from_module(Regrouped(rec).eval(), (torch.rand(2, DENSE_WIDTH), features))
