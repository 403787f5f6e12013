"""The tower of a version, read from its file for the host or a device."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.engines.device.tower.device_tower import DeviceTower
from sharded_infer.errors import ArtifactError, TowerError
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.towers.tower import Tower


class _TowerShape(TypedDict):
    """The expected inputs and outputs of a tower."""

    dense: Mapping[str, int]
    embedding_width: int
    outputs: Sequence[str]


@dataclass(frozen=True, slots=True)
class StoredTower:
    """A version's tower, not read yet."""

    artifact: Artifact
    spec: ModelSpec

    def on_host(self) -> Tower:
        """Reads it for the host.

        Raises:
            ArtifactError: the file is not the tower that the manifest says.
        """
        with self._file() as path:
            tower = Tower.load(path, **self._shape(), sequences=self.spec.tower_sequences)
        self._check_widths(tower.output_widths)
        return tower

    def on_device(self, device: torch.device) -> DeviceTower:
        """Reads it for a device.

        Args:
            device: where its tensors lie.

        Raises:
            ArtifactError: as `on_host`.
        """
        precision = self.artifact.manifest.tower.precision
        with self._file() as path:
            made = DeviceTower(path, **self._shape(), device=device, precision=precision)
        self._check_widths(made.output_widths)
        return made

    def _shape(self) -> _TowerShape:
        return {
            "dense": self.spec.dense.inputs,
            "embedding_width": self.spec.embedding_width,
            "outputs": self.spec.tower.outputs,
        }

    @contextmanager
    def _file(self) -> Iterator[Path]:
        """The tower's file; errors name it."""
        path = self.artifact.path / self.artifact.manifest.tower.file
        try:
            yield path
        except (TowerError, OSError) as error:
            raise ArtifactError(f"{path}: {error}") from error

    def _check_widths(self, found: tuple[int | None, ...]) -> None:
        record = self.artifact.manifest.tower
        widths = tuple(output.width for output in record.outputs)
        if widths != found:
            raise ArtifactError(
                f"{record.file}: its outputs are of widths {found}, the manifest says {widths}"
            )
