"""A version ready to be asked: artifact in, scores out."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sharded_infer.artifact import Artifact, open_artifact, verify_files
from sharded_infer.artifact_tables import check_files, table_pieces
from sharded_infer.batch import ModelInput
from sharded_infer.columns import columns_of
from sharded_infer.device.device_backends import backends_of, rank_devices
from sharded_infer.device.device_choice import DeviceChoice
from sharded_infer.device.device_engine import DeviceEngine, ModelParts
from sharded_infer.device.device_tower import DeviceTower
from sharded_infer.device.engine_memory import Towers
from sharded_infer.device.rank_tables import rank_bytes
from sharded_infer.errors import ArtifactError, InternalError, TowerError
from sharded_infer.finite_check import FiniteCheck
from sharded_infer.golden import has_weights
from sharded_infer.host_engine import HostEngine
from sharded_infer.input_columns import input_arrays
from sharded_infer.lookup import ShardedLookup
from sharded_infer.model_engine import ModelEngine, padded_dense
from sharded_infer.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.request import make_input
from sharded_infer.spec import ModelSpec
from sharded_infer.table_memory import TableMemory, huge_page_bytes, map_pages
from sharded_infer.table_pieces import TablePiece, place
from sharded_infer.tower import Tower


class Model:
    """One version of a model: its tables mapped, its tower built.

    Attributes:
        artifact: where it came from.
        spec: what it is.
        plan: where its shards are.
        memory: where its tables lie.
        rank_bytes: bytes of tables on each rank of the plan.
        engine: runs its batches.
    """

    def __init__(
        self,
        artifact: Artifact,
        plan: Plan,
        *,
        backend: str | None = None,
        memory: TableMemory | None = None,
        devices: DeviceChoice | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Maps or copies the tables and builds the tower; see `open_model`, the checked way in.

        Raises:
            ArtifactError: a file does not hold what the manifest says.
            CapacityError: the host or a device has too little memory.
            InputError: the forced backend cannot look the tables up, or there is no such device.
            LostMemoryError: a table file has become shorter meanwhile.
        """
        self.artifact = artifact
        self.plan = plan
        self.spec: ModelSpec = artifact.manifest.model_spec()
        self._finite = FiniteCheck(self.spec)
        tables = artifact.manifest.stored_tables()
        self._memories: dict[int, Tensor] = {}
        self._pieces: Mapping[str, Sequence[TablePiece]] = {}
        if devices is not None and plan.has_cards:
            # Mapped: read once, to be copied.
            self.memory = TableMemory.MAP
            pieces = table_pieces(artifact, self.memory, progress)
            self.rank_bytes = rank_bytes(plan, tables)
            weighted = has_weights(artifact.path / artifact.manifest.golden.file)
            parts = ModelParts(self.spec, plan, tables, pieces, weighted)
            self.engine: ModelEngine = self._on_devices(parts, devices, progress)
            check_files(pieces)
            return
        self.memory = TableMemory(self.spec.serving.memory) if memory is None else memory
        pieces = table_pieces(artifact, self.memory, progress)
        self._memories = {
            piece.memory.data_ptr(): piece.memory for parts in pieces.values() for piece in parts
        }
        self.rank_bytes = plan.bytes_by_rank(tables)
        self._pieces = pieces
        lookup = ShardedLookup(self.spec, tables, place(plan, tables, pieces), backend=backend)
        # Shards that were cut out of the files are copies.
        self.check_files()
        with self._tower_file() as path:
            tower = Tower.load(path, **self._tower_shape())
        self._check_widths(tower.output_widths)
        self._signature = tower.signature()
        self.engine = HostEngine(lookup, tower)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.artifact.manifest.model

    @property
    def version(self) -> int:
        """The version's number."""
        return self.artifact.manifest.version

    def map_pages(self, progress: Progress = no_progress) -> bool:
        """Has the pages of mapped tables there before requests need them; see `table_memory`.

        Args:
            progress: told the bytes.

        Returns:
            Whether they are: not where the kernel cannot be asked.
        """
        if self.memory is not TableMemory.MAP:
            return True
        done, total = 0, sum(memory.numel() for memory in self._memories.values())

        def mapped(count: int) -> None:
            nonlocal done
            done += count
            progress("mapping tables", done, total)

        return map_pages(list(self._memories.values()), mapped)

    def check_files(self) -> None:
        """Refuses to go on with mapped tables that have lost rows; lookups look for themselves.

        Raises:
            LostMemoryError: names the file, its size and what it was.
        """
        check_files(self._pieces)

    def tower_signature(self) -> str:
        """Equal for models whose towers run the same operators on the same shapes."""
        return self._signature

    def with_tower(self, tower: Tower) -> "Model":
        """The same tables, on the host, under another tower of the same inputs and outputs.

        Raises:
            InternalError: this one is on devices.
        """
        if not isinstance(self.engine, HostEngine):
            raise InternalError("a model on devices has its towers there")
        changed = copy.copy(self)
        changed.engine = self.engine.with_tower(tower)
        return changed

    def huge_page_bytes(self) -> int:
        """Bytes of its tables that lie in huge pages now; of mapped ones none do."""
        if self.memory is TableMemory.MAP:
            return 0
        return huge_page_bytes(list(self._memories.values()))

    def score(self, model_input: ModelInput, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Runs the tower.

        Args:
            model_input: the batch; its dense inputs are used.
            embeddings: fp32 `[rows, width]`; rows above B are padding.

        Returns:
            fp32 `[B]` or `[B, K]` of each output, in the spec's order.
        """
        scores = self.engine.score(padded_dense(model_input, len(embeddings)), embeddings)
        return tuple(score[: model_input.batch_size] for score in scores)

    def run(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]]:
        """Scores one batch.

        Args:
            model_input: the batch.

        Returns:
            fp32 `[B]` or `[B, K]` by output name.

        Raises:
            RequestError: an id is outside a table whose policy is `error`.
        """
        scores = self.engine.run(model_input).scores
        return dict(zip(self.spec.tower.outputs, scores, strict=True))

    def predict(self, inputs: object) -> dict[str, NDArray[np.float32]]:
        """Scores one request, given as a client would send it.

        Args:
            inputs: a mapping of arrays, tensors or lists by input name, a DataFrame, or a list of
                samples, each a mapping. A feature's ids are `[B]`, `[B, L]`, a list of B lists, or
                `[N]` with `<feature>.lengths` `[B]`; with `<feature>.lengths`, `[B, L]` are
                padded. `<feature>.weights` is as the ids. All at once they are `sparse.values`
                `[N]` with `sparse.lengths` `[S, B]` of the S features. Dense inputs are
                `[B, width]`, or `[B]` where the width is 1. A leading dimension of 1 is shared by
                all samples. Columns of labels and reference scores are left aside.

        Returns:
            fp32 `[B]` or `[B, K]` by output name.

        Raises:
            RequestError: an input is missing, unknown, of the wrong dtype or shape, not finite
                where the spec refuses that, or an id is outside its table.
        """
        model_input = make_input(self.spec, input_arrays(self.spec, columns_of(inputs)))
        self._finite.check(model_input)
        return self.run(model_input)

    def _on_devices(
        self, parts: ModelParts, choice: DeviceChoice, progress: Progress
    ) -> DeviceEngine:
        backends, available = backends_of(choice)
        record = self.artifact.manifest.tower
        self._signature = f"{record.file} on devices"

        def tower(device: torch.device) -> DeviceTower:
            with self._tower_file() as path:
                made = DeviceTower(
                    path,
                    **self._tower_shape(),
                    device=backends.runtime.tensors_of(device),
                    precision=record.precision,
                )
            self._check_widths(made.output_widths)
            return made

        return DeviceEngine(
            parts,
            Towers(
                tower,
                tuple(output.width for output in record.outputs),
                lambda made, batch: (made.memory_bytes, made.activation_bytes(batch)),
            ),
            devices=rank_devices(parts.plan, choice, available),
            backends=backends,
            max_batch=choice.max_batch or self.spec.serving.max_batch,
            progress=progress,
        )

    def _tower_shape(self) -> "_TowerShape":
        return {
            "dense": self.spec.dense.inputs,
            "embedding_width": self.spec.embedding_width,
            "outputs": self.spec.tower.outputs,
        }

    @contextmanager
    def _tower_file(self) -> Iterator[Path]:
        """The tower's file; what is wrong with it is said of the file."""
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


class _TowerShape(TypedDict):
    """What a tower is expected to be."""

    dense: Mapping[str, int]
    embedding_width: int
    outputs: Sequence[str]


def open_model(
    path: Path | str,
    *,
    topology: str | None = None,
    backend: str | None = None,
    memory: TableMemory | None = None,
    devices: DeviceChoice | None = None,
    verify: bool = True,
    progress: Progress = no_progress,
) -> Model:
    """Opens a published version.

    Args:
        path: the version's folder.
        topology: which of its plans to use; None takes the first.
        backend: a kernel backend's name to force it.
        memory: where the tables are to lie, on the host; None: as the spec says.
        devices: which CUDA devices a plan for cards is executed on; None: the host executes it.
        verify: compare every file's size and SHA-256 with the manifest first.
        progress: told how far verifying and copying are.

    Raises:
        NotFoundError: no such version, or no plan for the topology.
        InputError: the forced backend cannot look the tables up.
        ArtifactError: the version is incomplete, altered or of an unknown format.
        CapacityError: a device has too little memory; names it, with figures.
    """
    artifact = open_artifact(Path(path))
    if verify:
        verify_files(artifact, progress)
    return Model(
        artifact,
        artifact.plan(topology),
        backend=backend,
        memory=memory,
        devices=devices,
        progress=progress,
    )
