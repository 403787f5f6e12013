"""TorchRec's own DLRM, taken over whole, and from its checkpoint with a drafted description."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy

from kernels.row_format import RowFormat
from sharded_infer import ModelSpec, ShardedInferError, from_torchrec, load_spec
from tests.end_to_end.whole_model import TOLERANCES, WholeModel, check_served, stored_as, train
from tests.support.servers import Command, Done

torchrec = pytest.importorskip("torchrec", reason="TorchRec is not installed; see the bench extra")
models = pytest.importorskip("torchrec.models.dlrm")

ROWS = {"t_user": 120, "t_item": 90, "t_ad": 90}
FEATURES = {"t_user": ["user"], "t_item": ["item", "seen"], "t_ad": ["ad"]}
NAMES = [name for names in FEATURES.values() for name in names]


class Probability(nn.Module):
    """The model as it is asked: the sigmoid of its logit."""

    def __init__(self, dlrm: nn.Module) -> None:
        super().__init__()
        self.dlrm = dlrm

    def forward(self, dense: Tensor, sparse: Any) -> Tensor:
        return torch.sigmoid(self.dlrm(dense, sparse)).squeeze(1)


def arguments(rows: pd.DataFrame) -> tuple[Any, ...]:
    sparse = torchrec.KeyedJaggedTensor(
        keys=NAMES,
        values=torch.tensor(
            np.concatenate([i for name in NAMES for i in rows[name]]), dtype=torch.int64
        ),
        lengths=torch.tensor(
            np.concatenate([rows[name].map(len) for name in NAMES]), dtype=torch.int32
        ),
    )
    return torch.tensor(np.array(rows["dense"].tolist(), np.float32)), sparse


@pytest.fixture(scope="module")
def dlrm() -> WholeModel:
    torch.manual_seed(4)
    collection = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=name,
                num_embeddings=rows,
                embedding_dim=8,
                feature_names=FEATURES[name],
                init_fn=lambda weight: nn.init.normal_(weight, std=0.05),
            )
            for name, rows in ROWS.items()
        ]
    )
    model = Probability(models.DLRM(collection, 4, [16, 8], [16, 1]))
    generator = np.random.default_rng(4)
    frame = pd.DataFrame(
        {
            **{
                name: [generator.integers(0, rows, generator.integers(1, 4)) for _ in range(400)]
                for table, rows in ROWS.items()
                for name in FEATURES[table]
            },
            "dense": list(generator.random((400, 4)).astype(np.float32)),
            "label": generator.integers(0, 2, 400),
        }
    )
    wanted = torch.tensor(frame["label"].to_numpy(np.float32))
    train(model, lambda scores: binary_cross_entropy(scores, wanted), *arguments(frame))
    spec, weights, tower = from_torchrec(model.dlrm, "clicks")
    return WholeModel(model, arguments, frame, spec, weights, tower)


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_modules_score_as_the_model_does(
    dlrm: WholeModel, row_format: RowFormat, tmp_path: Path
) -> None:
    dlrm.publish_modules(stored_as(dlrm.spec, row_format), tmp_path / "models")
    check_served(dlrm, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def drafted(dlrm: WholeModel, folder: Path, row_format: RowFormat, command: Command) -> Path:
    """The description that `spec --from` drafts of the checkpoint, with what it cannot know."""
    torch.save(dlrm.module.state_dict(), folder / "model.pt")
    draft = command("spec", "--from", folder / "model.pt", "--name", "clicks")
    assert draft.code == 0, draft.err
    text = draft.out
    for table, names in FEATURES.items():
        assert f'name = "{table}"' in text
        lines = text.split("\n")
        start = lines.index(next(line for line in lines if line.startswith(f'name = "{table}"')))
        place = next(i for i in range(start, len(lines)) if lines[i].startswith("features = "))
        lines[place] = f"features = {names!r}"
        text = "\n".join(lines)
    (folder / "model.toml").write_text(text.replace('format = "int8"', f'format = "{row_format}"'))
    dlrm.recorded().to_json(folder / "clicks.jsonl", orient="records", lines=True)
    return folder / "model.toml"


@pytest.mark.parametrize("row_format", TOLERANCES)
def test_files_score_as_the_model_does(
    dlrm: WholeModel, row_format: RowFormat, tmp_path: Path, sharded_infer: Command
) -> None:
    spec = drafted(dlrm, tmp_path, row_format, sharded_infer)
    done = published(spec, sharded_infer)
    assert done.code == 0, done.err
    assert "recorded scores" in done.out
    check_served(dlrm, tmp_path / "models", tmp_path / "log", TOLERANCES[row_format])


def published(spec: Path, command: Command) -> Done:
    folder = spec.parent
    return command(
        "publish", "--spec", spec, "--weights", folder / "model.pt", "-r", folder / "models",
        "--calibration", folder / "clicks.jsonl",
    )  # fmt: skip


def changed(spec: ModelSpec, mistake: str) -> ModelSpec:
    user, item, ad = spec.tables
    tables = {
        "features in each other's table": (
            user,
            replace(item, features=("ad", "seen")),
            replace(ad, features=("item",)),
        ),
        "tables in another order": (user, ad, item),
        "a mean for the sum": (user, replace(item, pooling="mean"), ad),
    }
    return replace(spec, tables=tables[mistake])


MISTAKES = {
    "features in each other's table": "table 't_item': .*features",
    "tables in another order": "order",
    "a mean for the sum": "table 't_item': .*mean",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_modules(dlrm: WholeModel, mistake: str, tmp_path: Path) -> None:
    with pytest.raises(ShardedInferError, match=MISTAKES[mistake]):
        dlrm.publish_modules(changed(dlrm.spec, mistake), tmp_path / "models")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_from_files(
    dlrm: WholeModel, mistake: str, tmp_path: Path, sharded_infer: Command
) -> None:
    spec = drafted(dlrm, tmp_path, RowFormat.INT8, sharded_infer)
    spec.write_text(changed(load_spec(spec), mistake).to_toml())
    done = published(spec, sharded_infer)
    assert done.code == 1 and "recorded scores" in done.err, done
    assert not list((tmp_path / "models").glob("clicks/[0-9]*"))
