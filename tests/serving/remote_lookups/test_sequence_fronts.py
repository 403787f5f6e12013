"""Sequences whose rows and id maps are on shard hosts: bits, counts and refusals of one process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.model import open_model
from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import GateSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.serving.remote_lookups.test_raw_fronts import (
    HOSTS,
    OF_USER,
    checked,
    front_of,
    hosts_of,
)
from tests.sharded_infer.lookups.test_random_plans import KINDS
from tests.support.raw_cluster import MAPS, SPEC, TABLES, publish_raw_cluster, raw_inputs
from tests.support.raw_ids import Arrays

pytestmark = pytest.mark.usefixtures("poisoned_memory")
# Maps that leave unknown ids out, give them a row, and refuse them; a feature of two tables.
SEQUENCES = {
    "seen": SequenceSpec(40, features=("clicked", "page"), dense={"when": 1}),
    "shops": SequenceSpec(40, features=("shop", "country"), pad="left"),
    "users": SequenceSpec(3, features=("user_id",), keep="first", pad_to="max_length"),
}
WITH = replace(SPEC, sequences=SEQUENCES, gate=GateSpec(max_score_diff=100))


class Weighed(nn.Module):
    def forward(self, **inputs: Tensor) -> Tensor:
        found = [inputs["age"].sum(1), inputs["embeddings"].sum(1)]
        for name in SEQUENCES:
            rows = inputs[name]
            positions = torch.arange(rows.shape[1], dtype=torch.float32)[None, :, None]
            if SEQUENCES[name].pad == "left":
                # From the end: how far a batch is padded must not matter.
                positions = rows.shape[1] - positions
            found.append((rows / (1 + positions)).sum((1, 2)) + inputs[f"{name}_lengths"])
        return torch.stack([*found, inputs["when"].sum((1, 2))]).sum(0)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequences")
    return publish_raw_cluster(folder, HOSTS, KINDS, spec=WITH, tower=Weighed())


def inputs_of(batch: int, seed: int, *, is_shared: bool = False) -> Arrays:
    """A request with known and unknown raw ids, whose sequences may be shared by all samples."""
    shared = tuple(n for one in SEQUENCES.values() for n in one.features) if is_shared else ()
    arrays = raw_inputs(batch, seed, shared=shared)
    generator = np.random.default_rng(seed)
    for one in SEQUENCES.values():
        lengths = arrays[f"{one.features[0]}.lengths"]
        for name in one.features[1:]:
            ids = arrays[name] if len(arrays[name]) else np.zeros(1, np.int64)
            arrays[name] = generator.choice(ids, int(lengths.sum()))
            arrays[f"{name}.lengths"] = lengths
    arrays["when"] = generator.standard_normal(len(arrays["clicked"]), np.float32)
    arrays["when.lengths"] = arrays["clicked.lengths"]
    # No longer than the sequence: of longer ones a host is not asked for the rest.
    users = arrays["user_id.lengths"] = np.minimum(arrays["user_id.lengths"], 3)
    arrays["user_id"] = arrays["user_id"][: int(users.sum())]
    return arrays


def test_scores_have_the_bits_of_one_process_and_unknown_ids_its_counts(version: Path) -> None:
    whole, unknown = open_model(version), 0
    for own in (None, max(hosts_of(version))):
        front, _ = front_of(version, own)
        for seed, batch in enumerate((1, 2, 9, 1, 2, 9)):
            inputs = inputs_of(batch, seed, is_shared=seed > 2)
            expected, found = checked(whole, inputs), checked(front, inputs)
            [wanted], [got] = run_batch(whole, [expected]), run_batch(front, [found])
            np.testing.assert_array_equal(got.scores[0], wanted.scores[0])
            assert got.ids_outside == wanted.ids_outside
            assert dict(found.ids_unknown) | dict(got.ids_unknown) == dict(expected.ids_unknown)
            unknown += sum(count for _, count in expected.ids_unknown)
    assert unknown > 5


def test_an_id_that_is_left_out_leaves_zeros_and_its_companion_stays(version: Path) -> None:
    known, row = next(iter(MAPS["item"].items()))
    inputs = inputs_of(1, 0)
    for name, ids in {"clicked": [known, 77, known], "page": [5, 6, 7]}.items():
        inputs |= {name: np.array(ids), f"{name}.lengths": np.array([3])}
    inputs |= {"when": np.zeros(3, np.float32), "when.lengths": np.array([3])}
    generator = torch.Generator().manual_seed(3)
    weights = {t.name: torch.randn(t.rows, t.dim, generator=generator) for t in TABLES}
    for model in (open_model(version), front_of(version)[0]):
        asked = checked(model, inputs)
        width, dim = WITH.tower_sequences["seen"].width, weights["item"].shape[1]
        rows = model.engine.embeddings(asked)[0, WITH.embedding_width :]
        found = rows[: 8 * width].view(8, width)
        expected = weights["item"][row].to(torch.bfloat16).float()
        assert torch.equal(found[0, :dim], expected) and torch.equal(found[2, :dim], expected)
        assert not found[1, :dim].any() and not found[3:].any()
        assert (found[:3, dim:].abs().sum(1) > 0).all()


def test_an_unknown_id_is_refused_by_its_sample(version: Path) -> None:
    known = next(iter(MAPS["user"]))
    inputs = inputs_of(3, 0)
    inputs["user_id"] = np.array([known, known, known, 5])
    inputs["user_id.lengths"] = np.array([1, 0, 3])
    for model in (front_of(version)[0], open_model(version)):
        with pytest.raises(RequestError) as refused:
            model.predict(inputs)
        assert str(refused.value) == OF_USER.format(5).replace("sample 1", "sample 2")
