"""The tower of a version, read from its file for the host or a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.engines.device.tower.device_tower import DeviceTower
from sharded_infer.engines.user_stage import UserStage
from sharded_infer.errors import ArtifactError, TowerError
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.batch_sizes import BatchSizes
from sharded_infer.towers.host_products import HostProducts, ProductsOption, choose_products
from sharded_infer.towers.product_times import recall, relative_time, remember
from sharded_infer.towers.tower import Tower
from sharded_infer.towers.tower_kernels import kernel_bytes, run_samples


@dataclass(frozen=True, slots=True)
class StoredTower:
    """A version's tower, not read yet."""

    artifact: Artifact
    spec: ModelSpec

    def on_host(self, option: ProductsOption) -> tuple[Tower, HostProducts]:
        """Reads it for the host; returns the tower and its precision.

        Raises ArtifactError if the file does not match the manifest.
        """
        published = self.artifact.manifest.tower.precision
        chosen = choose_products(published, option)
        if chosen is None:
            tower, chosen = self._faster(published)
        else:
            tower = self._loaded(in_fp32=chosen.is_raised)
        self._check_widths(tower.output_widths)
        return tower, chosen

    def kept_states(self, option: ProductsOption = ProductsOption.AUTO) -> str:
        """As `UserStage.kept_states`, of a tower with user inputs."""
        tower, _ = self.on_host(option)
        sizes = BatchSizes(kernel_bytes(tower.program), run_samples(tower.program))
        return UserStage(tower, self.spec, sizes).kept_states

    def _loaded(self, *, in_fp32: bool) -> Tower:
        with self._file() as path:
            return Tower.load(
                path,
                dense=self.spec.dense.inputs,
                embedding_width=self.spec.embedding_width,
                outputs=self.spec.tower.outputs,
                sequences=self.spec.tower_sequences,
                in_fp32=in_fp32,
            )

    def _faster(self, published: Precision) -> tuple[Tower, HostProducts]:
        """The faster of the published tower and the same in fp32, timed once a machine."""
        tower = self._loaded(in_fp32=False)
        key = tower.signature()
        ratio = recall(key)
        in_fp32 = None
        if ratio is None:
            in_fp32 = self._loaded(in_fp32=True)
            ratio = remember(key, relative_time(tower, in_fp32))
        if ratio is None:
            return tower, HostProducts(published, published, "no folder for times of products")
        if ratio <= 1.0:
            return tower, HostProducts(published, published, f"takes {ratio:.2f} of fp32's time")
        reason = f"{published} takes {ratio:.2f} of fp32's time"
        return in_fp32 or self._loaded(in_fp32=True), HostProducts(
            published, Precision.FP32, reason
        )

    def on_device(self, device: torch.device) -> DeviceTower:
        """Reads it for a device; raises ArtifactError as `on_host`."""
        with self._file() as path:
            tower = DeviceTower(
                path,
                dense=self.spec.dense.inputs,
                embedding_width=self.spec.embedding_width,
                outputs=self.spec.tower.outputs,
                device=device,
                precision=self.artifact.manifest.tower.precision,
            )
        self._check_widths(tower.output_widths)
        return tower

    @contextmanager
    def _file(self) -> Iterator[Path]:
        path = self.artifact.path / self.artifact.manifest.tower.file
        try:
            yield path
        except (TowerError, OSError) as error:
            raise ArtifactError(f"{path}: {error}") from error

    def _check_widths(self, widths: tuple[int | None, ...]) -> None:
        record = self.artifact.manifest.tower
        expected = tuple(output.width for output in record.outputs)
        if widths != expected:
            raise ArtifactError(
                f"{record.file}: its outputs are of widths {widths}, the manifest says {expected}"
            )
