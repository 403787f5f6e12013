"""Versions whose description of a sequence contradicts itself, their format or their tower."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from sharded_infer.artifacts.manifest import GOLDEN_NAME
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ArtifactError
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.attacks.test_artifact import listed_anew
from tests.support.manifest_file import edit_manifest

SPEC = ModelSpec(
    "history",
    (TableSpec("item", 30, 8, features=("candidate", "clicks")), TableSpec("action", 5, 4)),
    tower=TowerSpec(user_inputs=("seen",)),
    quantization=QuantizationSpec("fp32"),
    sequences={"seen": SequenceSpec(16, features=("clicks", "action"), dense={"age": 1})},
)


class Tower(nn.Module):
    """Sums what it gets."""

    def forward(
        self, seen: Tensor, seen_lengths: Tensor, age: Tensor, embeddings: Tensor
    ) -> Tensor:
        user = seen.sum((1, 2)) + age.sum((1, 2)) + seen_lengths.to(torch.float32)
        return user + embeddings.sum(1)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {t.name: torch.randn(t.rows, t.dim) for t in SPEC.tables}
    return publish(SPEC, weights, Tower(), tmp_path_factory.mktemp("sequences")).path


@pytest.fixture
def version(published: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(published, tmp_path / "1"))


def seen(**changed: Any) -> Callable[[dict[str, Any]], None]:
    """Changes fields of the sequence."""
    return lambda document: document["spec"]["sequences"]["seen"].update(changed)


def test_the_honest_version_is_opened(version: Path) -> None:
    edit_manifest(version, lambda document: None)
    assert open_model(version).spec.sequences == SPEC.sequences


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.update(format_version=1), "format_version: expected 2 .* 1 sequence .* got 1"),
        (
            lambda d: (d["spec"].pop("sequences"), d["spec"]["tower"].pop("user_inputs")),
            "format_version: expected 1 .* 0 sequences .* got 2",
        ),
        (
            lambda d: (d["spec"].pop("sequences"), d.update(format_version=1)),
            "user_inputs: 'seen' is no dense input",
        ),
        (seen(features=["clicks", "clocks"]), "seen: 'clocks' is not one of the tables' features"),
        (seen(features=[]), "sequences: seen: features: "),
        (seen(features=["clicks", "clicks"]), "'clicks' is defined more than once"),
        (seen(max_length=0), "sequences: seen: max_length: "),
        (seen(max_length=2**16 + 1), "sequences: seen: max_length: "),
        (seen(max_length=2**63), "sequences: seen: max_length: "),
        (seen(dense={"age": 2**40}), "sequences: seen: dense: age: "),
        (seen(dense={"candidate": 1}), "'candidate' is defined more than once"),
        (seen(dense={"item": 1}), "the dense input 'item' has the name of a table"),
        (seen(keep="middle"), "sequences: seen: keep: "),
        (seen(pad="both"), "sequences: seen: pad: "),
        (seen(pickle="os.system"), "sequences: seen: pickle: "),
        (
            lambda d: d["spec"]["sequences"].update(seen_lengths=d["spec"]["sequences"]["seen"]),
            "is defined more than once",
        ),
        (
            lambda d: d["spec"]["sequences"].update(more={"max_length": 4, "features": ["clicks"]}),
            "'clicks' is defined more than once",
        ),
        (lambda d: d["spec"]["tower"].update(user_inputs=["clicks"]), "'clicks' is no dense input"),
    ],
)  # fmt: skip
def test_a_spec_that_contradicts_itself_is_refused(
    version: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    edit_manifest(version, change)
    with pytest.raises(ArtifactError, match=words):
        open_model(version)


@pytest.mark.parametrize(
    "change",
    [
        seen(max_length=17),
        seen(dense={"age": 2}),
        seen(dense={"years": 1}),
        seen(features=["clicks"]),
        seen(pad_to="max_length", max_length=20),
        lambda d: (
            d["spec"]["sequences"].update(other=d["spec"]["sequences"].pop("seen")),
            d["spec"]["tower"].update(user_inputs=["other"]),
        ),
    ],
    ids=["longer", "wider", "another name", "narrower", "fixed", "another sequence"],
)
def test_a_tower_of_other_sequences_is_refused(
    version: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    edit_manifest(version, change)
    with pytest.raises(ArtifactError, match=r"tower\.pt2|golden\.safetensors"):
        open_model(version)


def test_golden_requests_of_other_lengths_are_refused(version: Path) -> None:
    tensors = load_file(version / GOLDEN_NAME)
    # As many in all: one sample's actions are another's.
    tensors["sparse.lengths"][2] = np.roll(tensors["sparse.lengths"][2], 1)
    save_file(tensors, version / GOLDEN_NAME)
    listed_anew(version, GOLDEN_NAME)
    with pytest.raises(ArtifactError, match=r"golden.*'action'.*'clicks' of sequence 'seen'"):
        check_golden(open_model(version))
