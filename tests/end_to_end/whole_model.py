"""A stranger's model: published in both ways, served, and compared with its own scores."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kernels.row_format import RowFormat
from sharded_infer import (
    ModelSpec,
    Precision,
    QuantizationSpec,
    export_tower,
    publish,
    record_reference,
    write_program,
)
from sharded_infer.client import Client
from tests.support.servers import Command, Done, running_server

# Of served scores, from the module's own, by the tables' format.
TOLERANCES = {RowFormat.FP32: 1e-5, RowFormat.INT8: 1e-3}


@dataclass(frozen=True, slots=True)
class WholeModel:
    """What somebody has who trained a model: `arguments` makes the module's of rows of the data."""

    module: nn.Module
    arguments: Callable[[Any], tuple[Any, ...]]
    frame: pd.DataFrame
    spec: ModelSpec
    tables: object
    tower: nn.Module

    def scores(self) -> dict[str, NDArray[np.float32]]:
        """The module's own scores of the data: eager, fp32."""
        with torch.inference_mode():
            found = self.module(*self.arguments(self.frame))
        named = found if isinstance(found, Mapping) else {self.spec.tower.outputs[0]: found}
        return {name: scores.numpy() for name, scores in named.items()}

    def recorded(self) -> pd.DataFrame:
        """The data with the module's own scores beside them."""
        frame: pd.DataFrame = record_reference(
            self.module, self.frame, inputs=self.arguments, output=self.spec.tower.outputs[0]
        )
        return frame

    def publish_modules(self, spec: ModelSpec, repository: Path, *, recorded: bool = False) -> None:
        """From Python: modules as they are in memory."""
        samples = self.recorded() if recorded else self.frame
        publish(spec, self.tables, self.tower, repository, calibration=samples)

    def publish_files(self, spec: ModelSpec, folder: Path, sharded_infer: Command) -> Done:
        """From the command line: a state dict, a description, a program and recorded scores."""
        folder.mkdir(parents=True, exist_ok=True)
        program = export_tower(
            self.tower,
            dense=self.spec.dense.inputs,
            embedding_width=self.spec.embedding_width,
            outputs=self.spec.tower.outputs,
            precision=Precision.FP32,
        )
        write_program(program, folder / "tower.pt2")
        torch.save(self.module.state_dict(), folder / "model.pt")
        described = replace(spec, tower=replace(spec.tower, program="tower.pt2"))
        (folder / "model.toml").write_text(described.to_toml())
        self.recorded().to_json(folder / "clicks.jsonl", orient="records", lines=True)
        return sharded_infer(
            "publish", "--spec", folder / "model.toml", "--weights", folder / "model.pt",
            "-r", folder / "models", "--calibration", folder / "clicks.jsonl",
        )  # fmt: skip


def stored_as(spec: ModelSpec, row_format: RowFormat) -> ModelSpec:
    return replace(spec, quantization=QuantizationSpec(row_format))


def check_served(model: WholeModel, repository: Path, log: Path, tolerance: float) -> None:
    """Serves the only version, and compares every sample's scores with the module's own."""
    expected = model.scores()
    asked = model.frame.drop(columns=[c for c in model.frame if str(c).startswith("label")])
    with running_server(repository, log) as server, Client(server.grpc_url) as client:
        answer = client.predict(model.spec.name, candidates=asked, timeout_seconds=60.0)
    for name, scores in expected.items():
        difference = float(np.abs(answer.scores[name] - scores).max())
        assert difference <= tolerance, f"{name}: {difference:.3g}"


def train(
    model: nn.Module, loss: Callable[[Any], Tensor], *arguments: Any, steps: int = 30
) -> None:
    """Trains on one batch, so that no weight is what it was drawn as; then evaluation mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(*arguments)).backward()
        optimizer.step()
    model.eval()
