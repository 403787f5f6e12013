"""Towers as artifacts have them: exported, written to a file and read back."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.archive import pack_program, read_packed, write_program
from sharded_infer.towers.tower import Tower, export_tower


class Signature(NamedTuple):
    width: int = 0  # of the embeddings
    dense: Mapping[str, int] = {}
    sequences: Mapping[str, SequenceInput] = {}
    outputs: Sequence[str] = ("score",)

    def export(
        self,
        module: nn.Module,
        precision: Precision = Precision.FP32,
        calibration: Sequence[Tensor] | None = None,
    ) -> ExportedProgram:
        return export_tower(
            module,
            dense=self.dense,
            embedding_width=self.width,
            sequences=self.sequences,
            outputs=self.outputs,
            precision=precision,
            calibration=calibration,
        )

    def load(self, path: Path, *, tf32: bool = False) -> Tower:
        return Tower.load(
            path,
            dense=self.dense,
            embedding_width=self.width,
            sequences=self.sequences,
            outputs=self.outputs,
            tf32=tf32,
        )


def read_back(program: ExportedProgram) -> GraphModule:
    return read_packed(io.BytesIO(pack_program(program)), "the tower")


def load_back(program: ExportedProgram, signature: Signature) -> Tower:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tower.pt2"
        write_program(program, path)
        return signature.load(path)
