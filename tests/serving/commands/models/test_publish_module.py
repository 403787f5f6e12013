"""`publish --module`: a module of the user's own, its weights and an example from files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.servers import Command
from tests.support.torchrec_models import torchrec

SOURCE = """
import torch
from torch import nn


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item = nn.Embedding(50, 8), nn.Embedding(70, 8)

    def forward(self, user, item):
        return torch.sigmoid((self.user(user) * self.item(item)).sum(1))


number = 3
"""
EXAMPLE = {"user": torch.arange(12), "item": torch.arange(12) * 5}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module, its weights and an example, in which commands run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "my_ranker.py").write_text(SOURCE)
    torch.manual_seed(0)
    state = {"user.weight": torch.randn(50, 8), "item.weight": torch.randn(70, 8)}
    torch.save({"state_dict": state}, "weights.pt")
    save_file(state, "weights.safetensors")
    torch.save(EXAMPLE, "rows.pt")
    yield tmp_path
    sys.modules.pop("my_ranker", None)


WORDS = ("publish", "-r", "models", "--module", "my_ranker:Ranker", "--example", "rows.pt")


@pytest.mark.parametrize("weights", ["weights.pt", "weights.safetensors"])
def test_a_module_is_published_with_the_weights_of_a_file(
    sharded_infer: Command, folder: Path, weights: str
) -> None:
    done = sharded_infer(*WORDS, "--weights", weights, "--name", "ranker", "--json")
    published = done.json()
    assert (published["model"], published["version"]) == ("ranker", 1)
    assert published["imported"].startswith("import compared with the trained module on 29 samples")
    assert "table user [50, 8]: user (pooled)" in done.err
    assert "my_ranker.py:12" in done.err


def test_a_dry_run_reports_and_publishes_nothing(sharded_infer: Command, folder: Path) -> None:
    done = sharded_infer(*WORDS, "--dry-run", "--columns", "a")
    done.refused("columns: expected them by input")
    done = sharded_infer(*WORDS, "--dry-run")
    assert done.code == 0, done.err
    assert "table item [70, 8]: item (pooled)" in done.out
    assert '[[tables]]\nname = "user"\nrows = 50' in done.out
    report = sharded_infer(*WORDS, "--dry-run", "--json").json()
    assert [table["table"] for table in report["tables"]] == ["user", "item"]
    assert report["model_toml"] in done.out
    assert not (folder / "models").exists()


BAGS = """
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        config = EmbeddingBagConfig(
            name="user", num_embeddings=50, embedding_dim=8, feature_names=["user"]
        )
        self.bags, self.layer = EmbeddingBagCollection(tables=[config]), nn.Linear(8, 1)

    def forward(self, features):
        return self.layer(self.bags(features)["user"]).squeeze(1)
"""


@pytest.mark.rest
def test_an_example_may_hold_jagged_ids_of_torchrec(sharded_infer: Command, folder: Path) -> None:
    (folder / "my_ranker.py").write_text(BAGS)
    with torchrec() as rec:
        features = rec.sparse.KeyedJaggedTensor(
            ["user"], torch.arange(9), lengths=torch.tensor([4, 0, 5])
        )
    torch.save({"features": features}, "rows.pt")
    done = sharded_infer(*WORDS, "--dry-run")
    assert "table bags_embedding_bags_user [50, 8]: user (pooled)" in done.out, done.err


def test_what_cannot_be_loaded_is_refused_by_name(sharded_infer: Command, folder: Path) -> None:
    (folder / "other.pt").write_bytes(b"no tensors")
    torch.save({"user.weight": torch.zeros(50, 8)}, "half.pt")
    torch.save({"user": Path("7")}, "paths.pt")
    for words, said in (
        (("--module", "my_ranker"), "expected MODULE:FUNCTION"),
        (
            ("--module", "missing:make"),
            "missing:make: ModuleNotFoundError: No module named",
        ),
        (("--module", "my_ranker:make"), "has no attribute 'make'"),
        (("--module", "my_ranker:number"), "is not callable"),
        (("--module", "builtins:dict"), "expected an nn.Module, got a dict"),
        (("--example", "other.pt"), "other.pt: expected tensors that torch.save wrote"),
        (
            ("--example", "paths.pt"),
            "Unsupported global: GLOBAL pathlib",
        ),
        (("--weights", "half.pt"), "half.pt: not the weights of Ranker"),
        (("--spec", "model.toml"), "--spec and --module exclude each other"),
        (("--part", "1/2"), "--module is published whole"),
        (("--method", "predict"), "Ranker has no method 'predict'"),
        (("--order-rows", "frequency"), "--samples and --order-rows: expected none"),
        (("--user", "age"), "user: 'age' is not one of the inputs"),
    ):
        sharded_infer(*WORDS, *words).refused(said)
    sharded_infer("publish", "-r", "models", "--module", "my_ranker:Ranker").refused("--example")
    sharded_infer("publish", "-r", "models", "--dry-run").refused("expected --module")
