"""Models of public packages, each published by one call; run in a process of its own.

    python -m tests.sharded_infer.importing.modules.packages torchfm FOLDER

It prints a JSON object of models to `""` or the message of a refusal. FOLDER holds the packages.
"""

import json
import logging
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sharded_infer import ShardedInferError, publish

# With what they import, without the rest of what they ask for.
REQUIREMENTS = (
    *("torchfm==0.7.0", "deepctr-torch==0.3.0", "torch-rechub==0.9.0", "recbole==1.2.1"),
    *("scikit-learn==1.9.1", "scipy==1.17.1", "joblib==1.6.0", "threadpoolctl==3.8.0"),
    *("narwhals", "tqdm", "colorlog", "colorama", "thop", "pytz", "texttable", "tabulate"),
    *("plotly", "psutil", "pandas", "python-dateutil", "six", "tzdata", "pyyaml"),
)
SAMPLES = 16
_Case = tuple[str, Callable[[], Any], Any, Mapping[str, Any]]


def torchfm() -> Iterator[_Case]:
    """Ids of all fields in one matrix."""
    from torchfm.model import (
        afi,
        afm,
        afn,
        dcn,
        dfm,
        ffm,
        fm,
        fnfm,
        fnn,
        lr,
        ncf,
        nfm,
        pnn,
        wd,
        xdfm,
    )

    rows, mlp = [20, 30, 7, 50], ((16,), 0.2)
    fields = torch.stack([torch.randint(0, count, (SAMPLES,)) for count in rows], 1)
    models: dict[str, Callable[[], Any]] = {
        "lr": lambda: lr.LogisticRegressionModel(rows),
        "fm": lambda: fm.FactorizationMachineModel(rows, 8),
        "ffm": lambda: ffm.FieldAwareFactorizationMachineModel(rows, 4),
        "fnn": lambda: fnn.FactorizationSupportedNeuralNetworkModel(rows, 8, *mlp),
        "wd": lambda: wd.WideAndDeepModel(rows, 8, *mlp),
        "ipnn": lambda: pnn.ProductNeuralNetworkModel(rows, 8, *mlp, "inner"),
        "opnn": lambda: pnn.ProductNeuralNetworkModel(rows, 8, *mlp, "outer"),
        "dcn": lambda: dcn.DeepCrossNetworkModel(rows, 8, 2, *mlp),
        "nfm": lambda: nfm.NeuralFactorizationMachineModel(rows, 8, (16,), (0.2, 0.2)),
        "ncf": lambda: ncf.NeuralCollaborativeFiltering(rows, [0], [1], 16, (16,), 0.2),
        "fnfm": lambda: fnfm.FieldAwareNeuralFactorizationMachineModel(rows, 4, (16,), (0.2, 0.2)),
        "dfm": lambda: dfm.DeepFactorizationMachineModel(rows, 8, *mlp),
        "xdfm": lambda: xdfm.ExtremeDeepFactorizationMachineModel(rows, 8, *mlp, (8, 8)),
        "afm": lambda: afm.AttentionalFactorizationMachineModel(rows, 8, 8, (0.2, 0.2)),
        "afi": lambda: afi.AutomaticFeatureInteractionModel(rows, 8, 8, 2, 2, (16,), (0.2,) * 3),
        "afn": lambda: afn.AdaptiveFactorizationNetwork(rows, 8, 16, (16,), (0.2,)),
    }
    for name, make in models.items():
        yield name, make, fields, {}


def deepctr_torch() -> Iterator[_Case]:
    """A float matrix of ids, numbers and padded histories."""
    from deepctr_torch import models
    from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

    rows = {"user": 20, "item": 30, "city": 7}
    sparse = [SparseFeat(name, count, 8) for name, count in rows.items()]
    tags = VarLenSparseFeat(SparseFeat("tags", 12, 8), maxlen=4, combiner="mean")
    mixed = [*sparse, DenseFeat("price", 1), tags]
    item = SparseFeat("hist_item", 30, 8, embedding_name="item")
    history = VarLenSparseFeat(item, maxlen=5, length_name="seq_length")
    behaviour = [sparse[1], sparse[0], history]

    def matrix(columns: list[Any]) -> tuple[torch.Tensor, tuple[str, ...]]:
        parts: list[torch.Tensor] = []
        names: list[str] = []
        for column in columns:
            width = getattr(column, "maxlen", 1)
            is_number = isinstance(column, DenseFeat)
            most = 1 if is_number else column.vocabulary_size
            ids = torch.randint(0, most, (SAMPLES, width)).float()
            parts.append(torch.rand(SAMPLES, 1) if is_number else ids)
            names += [column.name] * width
            if getattr(column, "length_name", None):
                parts.append(torch.randint(1, width + 1, (SAMPLES, 1)).float())
                names.append(column.length_name)
        return torch.cat(parts, 1), tuple(names)

    def case(name: str, columns: list[Any], *arguments: Any, **options: Any) -> _Case:
        inputs, names = matrix(columns)
        kind = getattr(models, name)
        return name, lambda: kind(*arguments, **options, device="cpu"), inputs, {"columns": names}

    for name in ("WDL", "DeepFM", "xDeepFM", "AutoInt", "DCN", "DCNMix", "FiBiNET", "NFM", "ONN"):
        yield case(name, mixed, mixed, mixed, task="binary")
    for name in ("IFM", "DIFM", "AFN"):
        yield case(name, mixed, mixed, mixed, task="binary")
    for name in ("AFM", "CCPM"):
        yield case(name, sparse, sparse, sparse, task="binary")
    yield case("PNN", mixed, mixed, task="binary")
    yield case("MLR", mixed[:4], mixed[:4], task="binary")
    for name in ("DIN", "DIEN"):
        yield case(name, behaviour, behaviour, ["item"], task="binary")
    tasks = {"task_types": ["binary"] * 2, "task_names": ["ctr", "ctcvr"]}
    for name in ("SharedBottom", "ESMM", "MMOE", "PLE"):
        yield case(name, mixed, mixed, **tasks)


def torch_rechub() -> Iterator[_Case]:
    """A dict of columns."""
    from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
    from torch_rechub.models import matching, multi_task, ranking

    rows = {"user": 20, "item": 30, "cate": 7}
    dense = [DenseFeature("price"), DenseFeature("age")]
    sparse = [SparseFeature(name, count, embed_dim=8) for name, count in rows.items()]
    user, item, category = sparse
    columns = {name: torch.randint(0, count, (SAMPLES,)) for name, count in rows.items()}
    columns |= {feature.name: torch.rand(SAMPLES) for feature in dense}
    histories = {f"hist_{n}": torch.randint(0, rows[n], (SAMPLES, 5)) for n in ("item", "cate")}
    with_histories = columns | histories
    named = {"embed_dim": 8, "pooling": "concat"}
    seen = [
        SequenceFeature("hist_item", 30, shared_with="item", **named),
        SequenceFeature("hist_cate", 7, shared_with="cate", **named),
    ]
    mean = SequenceFeature("hist_item", 30, embed_dim=8, pooling="mean", shared_with="item")
    mlp, ends = {"dims": [16], "dropout": 0.2, "activation": "relu"}, {"dims": [16, 8]}
    both, towers = ["classification"] * 2, [{"dims": [8]}] * 2
    features = dense + sparse
    models: dict[str, tuple[Callable[[], Any], Any]] = {
        "WideDeep": (lambda: ranking.WideDeep(dense, sparse, mlp), columns),
        "DeepFM": (lambda: ranking.DeepFM(sparse, sparse, mlp), columns),
        "DCN": (lambda: ranking.DCN(features, 2, mlp), columns),
        "DCNv2": (lambda: ranking.DCNv2(features, 2, mlp), columns),
        "EDCN": (lambda: ranking.EDCN(features, 2, mlp), columns),
        "FiBiNet": (lambda: ranking.FiBiNet(sparse, mlp), columns),
        "AutoInt": (lambda: ranking.AutoInt(sparse, dense, mlp_params=mlp), columns),
        "DIN": (
            lambda: ranking.DIN([user], seen, [item, category], {"dims": [16]}, ends),
            with_histories,
        ),
        "BST": (
            lambda: ranking.BST([*dense, user], seen, [item, category], mlp, 2, 0.2, 1),
            with_histories,
        ),
        "DSSM": (lambda: matching.DSSM([user, mean], [item, category], ends, ends), with_histories),
        "SharedBottom": (
            lambda: multi_task.SharedBottom(features, both, {"dims": [16]}, towers),
            columns,
        ),
        "MMOE": (lambda: multi_task.MMOE(features, both, 3, {"dims": [16]}, towers), columns),
        "PLE": (lambda: multi_task.PLE(features, both, 2, 2, 1, {"dims": [16]}, towers), columns),
        "ESMM": (lambda: multi_task.ESMM([user], [item], {"dims": [16]}, {"dims": [16]}), columns),
        "AITM": (lambda: multi_task.AITM(features, 2, {"dims": [16]}, towers), columns),
    }
    for name, (make, inputs) in models.items():
        yield name, make, inputs, {}


def recbole() -> Iterator[_Case]:
    """Batches of a dataset, and a method of another name."""
    # Names of an older numpy, and a package that only training writes to.
    old = {"float": float, "int": int, "float_": np.float64, "complex_": np.complex128}
    for name, kind in {**old, "unicode_": np.str_}.items():
        setattr(np, name, kind)
    stub: Any = types.ModuleType("torch.utils.tensorboard")
    stub.SummaryWriter = object
    sys.modules[stub.__name__] = stub
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model

    folder = Path(tempfile.mkdtemp())
    _write_dataset(folder / "ml")
    fields = {
        "inter": ["user_id", "item_id", "label", "timestamp", "price"],
        "user": ["user_id", "age"],
    }
    options = {
        "data_path": str(folder),
        "checkpoint_dir": str(folder),
        "load_col": fields | {"item": ["item_id", "class"]},
        "numerical_features": ["price"],
        "train_neg_sample_args": None,
        "embedding_size": 8,
        "mlp_hidden_size": [16, 8],
        "eval_args": {"split": {"RS": [8, 1, 1]}, "mode": "labeled", "order": "TO"},
        "metrics": ["AUC"],
        "valid_metric": "AUC",
        "use_gpu": False,
        "state": "ERROR",
    }
    for name in (
        *("LR", "FM", "FFM", "NFM", "DeepFM", "xDeepFM", "AFM", "AutoInt", "DCN", "DCNV2", "FNN"),
        *("FwFM", "PNN", "WideDeep", "EulerNet", "FiGNN", "KD_DAGFM", "DSSM"),
    ):
        config = Config(model=name, dataset="ml", config_dict=options)
        batches, *_ = data_preparation(config, create_dataset(config))
        model = get_model(name)(config, batches.dataset)
        yield name, partial(_same, model), next(iter(batches)).interaction, {"method": "predict"}


def _same(model: Any) -> Any:
    return model


def _write_dataset(folder: Path) -> None:
    folder.mkdir()
    draw = np.random.default_rng(0)
    lines = ["user_id:token\titem_id:token\tlabel:float\ttimestamp:float\tprice:float"]
    for time in range(600):
        user, item, label = draw.integers(20), draw.integers(30), draw.integers(2)
        lines.append(f"u{user}\ti{item}\t{label}\t{time}\t{draw.random():.3f}")
    (folder / "ml.inter").write_text("\n".join(lines) + "\n")
    for kind, field, count in (("user", "age", 20), ("item", "class", 30)):
        rows = [f"{kind[0]}{row}\t{draw.integers(5)}" for row in range(count)]
        text = "\n".join([f"{kind}_id:token\t{field}:token", *rows])
        (folder / f"ml.{kind}").write_text(text + "\n")


LIBRARIES = {one.__name__: one for one in (torchfm, deepctr_torch, torch_rechub, recbole)}


def main(library: str, folder: str) -> None:
    """Publish each model of a library."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    sys.path.append(folder)
    sys.argv = sys.argv[:1]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    found = {}
    for name, make, inputs, options in LIBRARIES[library]():
        model = make()
        for parameter in model.parameters():
            parameter.data += 0.03 * torch.randn_like(parameter)
        with tempfile.TemporaryDirectory() as repository:
            try:
                published = publish(model, inputs, repository, name=name, **options)
                is_compared = "compared with the trained module on" in published.compared
                found[name] = "" if is_compared else published.compared
            except ShardedInferError as error:
                found[name] = str(error)
    print("\n" + json.dumps(found))  # noqa: T201 - the result


if __name__ == "__main__":
    main(*sys.argv[1:])
