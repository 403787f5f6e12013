from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from kernels.row_format import RowFormat
from sharded_infer import GateSpec, ModelSpec, QuantizationSpec, TableSpec, TowerSpec, publish
from sharded_infer.engines.model import open_model
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import AGE, ARCHITECTURES, HISTORY, build_tower

ITEMS, ACTIONS, DIM, ACTION_DIM, MAX_LENGTH = 200, 10, 64, 8, 20
OPTIONS: dict[str, dict[str, object]] = {
    "din": {"attention": 36, "top": [64, 1]},
    "sasrec": {"blocks": 2, "heads": 2},
    "sasrec-forward": {"blocks": 2, "heads": 2},
    "bst": {"heads": 2, "time_buckets": 64, "top": [64, 1]},
    "hstu": {"layers": 2, "heads": 2, "time_buckets": 64, "top": [64, 1]},
}
# What rounding rows and products may move a score by. A wrong row or mask moves it by more.
BOUNDS = {
    (RowFormat.FP32, Precision.FP32): 1e-5,
    (RowFormat.BF16, Precision.BF16): 0.02,
    (RowFormat.INT8, Precision.FP16): 0.02,
    (RowFormat.INT8, Precision.INT8): 0.05,
}
LENGTHS = (0, 1, 7, 20, 33)

Arrays = dict[str, NDArray[np.generic]]


class Trained:
    """Tables and a tower with weights as after training: scores far from each other."""

    def __init__(self, architecture: str) -> None:
        torch.manual_seed(0)
        companions = ARCHITECTURES[architecture].companions or ()
        self.dense = dict.fromkeys(companions, 1)
        self.tables = {
            "item": nn.Embedding(ITEMS, DIM),
            "action": nn.Embedding(ACTIONS, ACTION_DIM),
        }
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=0.3)
        self.tower = build_tower(
            architecture,
            dense_inputs={},
            feature_dims=[DIM],
            options=OPTIONS[architecture],
            sequences={HISTORY: SequenceSizes((DIM, ACTION_DIM), MAX_LENGTH, self.dense)},
        ).eval()
        if not architecture.startswith("sasrec"):
            # An untrained MLP gives all samples nearly the same score.
            self.tower.top.layers[-1].weight.data *= 5
        self.architecture = architecture

    def spec(self, rows: RowFormat, precision: Precision) -> ModelSpec:
        history = SequenceSpec(MAX_LENGTH, (HISTORY, "action"), self.dense)
        return ModelSpec(
            self.architecture,
            (
                TableSpec("item", ITEMS, DIM, features=("item", HISTORY)),
                TableSpec("action", ACTIONS, ACTION_DIM),
            ),
            tower=TowerSpec(
                architecture=self.architecture,
                options=OPTIONS[self.architecture],
                precision=precision,
                user_inputs=(HISTORY,),
            ),
            quantization=QuantizationSpec(format=rows),
            gate=GateSpec(max_score_diff=BOUNDS[rows, precision]),
            sequences={HISTORY: history},
        )

    def samples(self, lengths: tuple[int, ...], candidates: int, seed: int) -> Arrays:
        """Histories of these lengths, padded with other rows, and candidates."""
        generator = np.random.default_rng(seed)
        shape = (len(lengths), max(1, *lengths))
        arrays: Arrays = {
            "item": generator.integers(0, ITEMS, candidates),
            HISTORY: generator.integers(0, ITEMS, shape),
            "action": generator.integers(0, ACTIONS, shape),
            f"{HISTORY}.lengths": np.array(lengths),
        }
        if self.dense:
            ages = generator.exponential(1e5, shape).cumsum(1)[:, ::-1]
            arrays[AGE] = ages.astype(np.float32)
        return arrays

    def scores(self, arrays: Arrays) -> NDArray[np.float32]:
        """Scores of torch in fp32, a sample at a time, with its last `MAX_LENGTH` steps."""
        items, lengths = arrays["item"], arrays[f"{HISTORY}.lengths"]
        found = []
        for sample in range(len(items)):
            row = sample if len(lengths) > 1 else 0
            end = int(lengths[row])
            steps = slice(max(0, end - MAX_LENGTH), max(end, 1))
            ids = (torch.from_numpy(arrays[name][row, steps]) for name in (HISTORY, "action"))
            rows = zip(self.tables.values(), ids, strict=True)
            given = {
                HISTORY: torch.cat([table(those) for table, those in rows], 1).unsqueeze(0),
                f"{HISTORY}_lengths": torch.tensor([min(end, MAX_LENGTH)]),
            }
            for name in self.dense:
                given[name] = torch.from_numpy(arrays[name][row, steps].copy())[None, :, None]
            candidate = self.tables["item"](torch.from_numpy(items[sample : sample + 1]))
            with torch.no_grad():
                found.append(self.tower(**given, embeddings=candidate).numpy())
        return np.concatenate(found)


@pytest.mark.parametrize(("rows", "precision"), BOUNDS)
@pytest.mark.parametrize("architecture", OPTIONS)
def test_a_published_tower_keeps_its_gate_and_scores_as_torch(
    architecture: str, rows: RowFormat, precision: Precision, tmp_path: Path
) -> None:
    trained = Trained(architecture)
    calibration = trained.samples(tuple(n % 24 for n in range(128)), 128, seed=1)
    published = publish(
        trained.spec(rows, precision),
        trained.tables,
        trained.tower,
        tmp_path,
        calibration=calibration,
    )
    model = open_model(published.path)
    own = trained.samples(LENGTHS, len(LENGTHS), seed=2)
    # One history and many candidates: the tower in two stages.
    shared = [trained.samples((length,), 9, seed=3 + length) for length in LENGTHS]
    for arrays in (own, *shared):
        expected = trained.scores(arrays)
        assert expected.std() > 0.01
        np.testing.assert_allclose(
            model.predict(arrays)["score"], expected, rtol=0, atol=BOUNDS[rows, precision]
        )
