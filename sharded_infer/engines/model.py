"""A model in this process: artifact in, scores out."""

import copy
from collections.abc import Mapping
from hashlib import blake2b
from math import inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.sequences.user_states import UserStates
from sharded_infer.artifacts.artifact import Artifact, open_artifact, verify_files
from sharded_infer.artifacts.golden import has_weights
from sharded_infer.artifacts.manifest import MANIFEST_NAME
from sharded_infer.artifacts.mapped_id_maps import open_id_maps, open_row_places
from sharded_infer.artifacts.mapped_tables import CopyFile, check_files, table_pieces
from sharded_infer.artifacts.table_memory import TableMemory, copy_to_huge_pages
from sharded_infer.deltas.overlays import open_overlays, overlaid
from sharded_infer.engines.device.backends import backends_of, rank_devices
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.device.device_engine import DeviceEngine, ModelParts
from sharded_infer.engines.device.rank_tables import rank_bytes
from sharded_infer.engines.host_engine import HostEngine
from sharded_infer.engines.model_engine import ModelEngine, padded_dense
from sharded_infer.engines.stored_tower import StoredTower
from sharded_infer.engines.user_cache import UserCache
from sharded_infer.engines.zero_padding import ZeroPadding
from sharded_infer.errors import DeviceError, InternalError
from sharded_infer.inputs.columns import columns_of
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.input_columns import input_arrays
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.inputs.placed_ids import RowMap
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.inputs.sequences.layout import SequenceLayout
from sharded_infer.inputs.sequences.tower_rows import SequenceRows, taken_apart, tower_inputs
from sharded_infer.inputs.sequences.work import BatchWork
from sharded_infer.lookups.held.held_rows import HeldRows
from sharded_infer.lookups.held.row_memory import RowMemory
from sharded_infer.lookups.placement import (
    id_ranges,
    mapped_by_hosts,
    place_stored,
    share_of,
)
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.towers.host_products import HostProducts, ProductsOption
from sharded_infer.towers.tower import Tower


class Model:
    """One version of a model: its tables mapped, its tower built.

    Attributes:
        rank_bytes: bytes of tables on each rank of the plan.
        is_front: True if other hosts have some of the rows.
        id_maps: by table, of those whose raw ids are mapped here.
        row_maps: these, and the row orders of ordered tables.
        work: a batch's counts for its cost.
        users: states of users, kept between requests; None: none are.
        products: precision of the tower's products on the host; None: it is on devices.
    """

    def __init__(
        self,
        artifact: Artifact,
        plan: Plan,
        *,
        backend: str | None = None,
        memory: TableMemory | None = None,
        copy_file: CopyFile = copy_to_huge_pages,
        devices: DeviceChoice | None = None,
        front: Front | None = None,
        user_states: UserStates | None = None,
        row_memory_bytes: int | None = None,
        products: ProductsOption = ProductsOption.AUTO,
        progress: Progress = no_progress,
    ) -> None:
        """Maps or copies the tables and builds the tower, without checks; see `open_model`.

        Args:
            copy_file: makes copies in huge pages, or finds those of other processes; a front makes
                private ones of its own rows.
            user_states: keeps users' states, of several versions and processes; None: none are.
        """
        self.artifact = artifact
        self.plan = plan
        self.spec: ModelSpec = artifact.manifest.model_spec()
        self.work = BatchWork(self.spec)
        self.users: UserCache | None = None
        self.products: HostProducts | None = None
        self._finite = FiniteCheck(self.spec)
        self.zero_padding = ZeroPadding(self.spec)
        self.is_front = front is not None
        tables = artifact.manifest.stored_tables()
        if devices is not None and plan.has_gpus:
            if self.spec.sequences:
                raise DeviceError(
                    f"model {self.spec.name!r}: sequences are looked up on the host alone, "
                    f"expected a plan without GPUs, got topology {plan.topology.name!r}"
                )
            if row_memory_bytes is not None:
                raise DeviceError(
                    f"topology {plan.topology.name!r}: memory for rows is bounded on the host "
                    "alone, expected a plan without GPUs"
                )
            if front is not None:
                raise DeviceError(
                    f"topology {plan.topology.name!r}: a front looks rows up on hosts alone, "
                    "expected a plan without GPUs"
                )
            # Mapped: read once, to be copied.
            self.memory = TableMemory.MAP
            self.id_maps = open_id_maps(artifact)
            self.row_maps: Mapping[str, RowMap] = {**self.id_maps, **open_row_places(artifact)}
            pieces = overlaid(
                table_pieces(artifact, self.memory, progress), open_overlays(artifact)
            )
            self._rows = HeldRows(artifact, (), self.memory, is_share=True)
            self.rank_bytes = rank_bytes(plan, tables)
            weighted = has_weights(artifact.path / artifact.manifest.golden.file)
            parts = ModelParts(self.spec, plan, tables, pieces, weighted, self.row_maps)
            self.engine: ModelEngine = self._on_devices(parts, devices, progress)
            check_files(piece for of_table in pieces.values() for piece in of_table)
            return
        self.memory = TableMemory(self.spec.serving.memory) if memory is None else memory
        placed = place_stored(plan, artifact)
        if front is None:
            self.id_maps = open_id_maps(artifact, self.memory, copy_file)
        else:
            theirs = mapped_by_hosts(placed, self.spec, front.host)
            here = artifact.manifest.mapped_tables - theirs
            ids = id_ranges(artifact.manifest, here)
            self.id_maps = open_id_maps(artifact, self.memory, tables=here, ranges=ids)
        copy_places = copy_file if front is None else copy_to_huge_pages
        places = open_row_places(artifact, self.memory, copy_places)
        self.row_maps = {**self.id_maps, **places}
        self._rows = HeldRows(
            artifact,
            placed if front is None else share_of(placed, front.host),
            self.memory,
            is_share=front is not None,
            copy_file=copy_file,
            row_memory_bytes=row_memory_bytes,
            progress=progress,
        )
        self.rank_bytes = plan.bytes_by_rank(tables)
        if front is not None:
            hosts = [device.host for device in plan.topology.devices]
            self.rank_bytes = [
                held if host == front.host else 0
                for host, held in zip(hosts, self.rank_bytes, strict=True)
            ]
        lookups = PlanLookups(
            self.spec,
            placed,
            self._rows.pieces,
            hosts=None if front is None else front.hosts,
            backend=backend,
            id_maps=self.row_maps,
        )
        tower, self.products = StoredTower(artifact, self.spec).on_host(products)
        self._signature = tower.signature()
        self.engine = host = HostEngine(lookups, tower, self.spec)
        if user_states is not None and self.spec.tower.user_inputs:
            self.users = host.users = UserCache(user_states, self._state_name())

    @property
    def name(self) -> str:
        """The model's name."""
        return self.artifact.manifest.model

    @property
    def version(self) -> int:
        """The version's number."""
        return self.artifact.manifest.version

    @property
    def row_memory(self) -> RowMemory | None:
        """Tiers of its rows; None: all of them are mapped or copied."""
        return self._rows.row_memory

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' rows that this process looks up itself."""
        if self.is_front:
            return sum(self.rank_bytes)
        return self.artifact.manifest.table_bytes

    def map_pages(self, progress: Progress = no_progress) -> bool:
        """As `HeldRows.map_pages`."""
        return self._rows.map_pages(progress)

    def huge_page_bytes(self) -> int:
        """As `HeldRows.huge_page_bytes`."""
        return self._rows.huge_page_bytes()

    def tower_signature(self) -> str:
        """Equal for models whose towers run the same operators on the same shapes."""
        return self._signature

    def _state_name(self) -> bytes:
        """16 bytes, the same for models that compute the same states."""
        manifest = (self.artifact.path / MANIFEST_NAME).read_bytes()
        return blake2b(manifest + self._signature.encode(), digest_size=16).digest()

    def check_files(self) -> None:
        """As `HeldRows.check_files`, for id maps and row orders too."""
        for row_map in self.row_maps.values():
            row_map.check_file()
        self._rows.check_files()

    def with_tower(self, tower: Tower) -> "Model":
        """The same tables, on the host, under another tower of the same inputs and outputs."""
        if not isinstance(self.engine, HostEngine):
            raise InternalError("a model on devices has its towers there")
        changed = copy.copy(self)
        changed.engine = self.engine.with_tower(tower)
        return changed

    def score(
        self, model_input: ModelInput, embeddings: Tensor, *, positions: int = 0
    ) -> tuple[Tensor, ...]:
        """Runs the tower: fp32 `[B]` or `[B, K]` of each output, in the spec's order.

        Args:
            model_input: the batch; only its dense inputs and sequence lengths are used.
            embeddings: fp32 `[rows, width]`, as the engine's; rows above B are padding.
            positions: of sequences, which are padded to at least as many, up to `max_length`.
        """
        rows = len(embeddings)
        inputs = padded_dense(model_input, rows)
        if self.spec.sequences:
            pooled, sequences = self._taken_apart(model_input, embeddings)
            specs = self.spec.sequences.values()
            sequences = [
                rows.lengthened(spec, positions)
                for rows, spec in zip(sequences, specs, strict=True)
            ]
            inputs += tower_inputs(sequences, rows, rows, None)
        else:
            pooled = embeddings
        scores = self.engine.score(inputs, pooled)
        return tuple(score[: model_input.batch_size] for score in scores)

    def run(self, model_input: ModelInput) -> dict[str, NDArray[np.float32]]:
        """Scores one batch, by output name; arguments and errors as `ModelEngine.run`."""
        scores = self.engine.run(model_input).scores
        return dict(zip(self.spec.tower.outputs, scores, strict=True))

    @property
    def kept_states(self) -> str | None:
        """As `HostEngine.kept_states`; None on devices."""
        return self.engine.kept_states if isinstance(self.engine, HostEngine) else None

    def prepare(self, model_input: ModelInput, deadline: float = inf) -> tuple[int, int]:
        """As `HostEngine.prepare`; raises InternalError if `users` is None."""
        if not isinstance(self.engine, HostEngine):
            raise InternalError("a model on devices keeps no states of users")
        return self.engine.prepare(model_input, deadline)

    def predict(self, inputs: object) -> dict[str, NDArray[np.float32]]:
        """Scores one request, in a client's form: fp32 `[B]` or `[B, K]` by output name.

        Args:
            inputs: a mapping of arrays, tensors or lists by input name, a DataFrame, or a list of
                samples, each a mapping. A feature's ids are `[B]`, `[B, L]`, a list of B lists, or
                `[N]` with `<feature>.lengths` `[B]`; with `<feature>.lengths`, `[B, L]` are padded.
                `<feature>.weights` is as the ids. All at once they are `sparse.values` `[N]` with
                `sparse.lengths` `[S, B]` of the S features. Dense inputs are `[B, width]`, or `[B]`
                where the width is 1. A leading dimension of 1 is shared by all samples. Columns of
                labels and reference scores are ignored.

        Raises:
            RequestError: an input is missing, unknown, of the wrong dtype or shape, not finite
                where the spec refuses that, or an id is outside its table.
        """
        return self.run(self.read(inputs))

    def read(self, inputs: object) -> ModelInput:
        """A request in a client's form as a batch; as `predict`."""
        model_input = make_input(self.spec, input_arrays(self.spec, columns_of(inputs)))
        self._finite.check(model_input)
        self.zero_padding.look(model_input)
        return model_input

    def _taken_apart(
        self, model_input: ModelInput, embeddings: Tensor
    ) -> tuple[Tensor, list[SequenceRows]]:
        laid_out = SequenceLayout(self.spec).lay_out(model_input)
        samples, rows = model_input.batch_size, len(embeddings)
        shapes = [SequenceRows.empty(one).spread(samples, rows, None) for one in laid_out]
        return taken_apart(embeddings, self.spec.embedding_width, shapes)

    def _on_devices(
        self, parts: ModelParts, choice: DeviceChoice, progress: Progress
    ) -> DeviceEngine:
        backends, available = backends_of(choice)
        self._signature = f"{self.artifact.manifest.tower.file} on devices"
        stored = StoredTower(self.artifact, self.spec)
        return DeviceEngine(
            parts,
            lambda device: stored.on_device(backends.runtime.tensors_of(device)),
            devices=rank_devices(parts.plan, choice, available),
            backends=backends,
            max_batch=choice.max_batch or self.spec.serving.max_batch,
            progress=progress,
        )


def open_model(
    path: Path | str,
    *,
    topology: str | None = None,
    backend: str | None = None,
    memory: TableMemory | None = None,
    devices: DeviceChoice | None = None,
    front: Front | None = None,
    row_memory_bytes: int | None = None,
    products: ProductsOption = ProductsOption.AUTO,
    verify: bool = True,
    progress: Progress = no_progress,
) -> Model:
    """Opens a published version.

    Args:
        topology: selects one of its plans; None takes the first.
        backend: a kernel backend's name to force it.
        memory: placement of the tables on the host; None: as in the spec.
        devices: CUDA devices for a plan for GPUs; None: the host executes it.
        front: maps only the rows of this process's host, and asks other hosts for theirs; None: all
            rows are here.
        row_memory_bytes: memory for the most used rows; the others are read from the files for each
            lookup, with the same bits. None: `memory` places all.
        products: selects the precision of the tower's products on a host.
        verify: compare every file's size and SHA-256 with the manifest first.

    Raises:
        NotFoundError: no such version, or no plan for the topology.
        InputError: the forced backend cannot look the tables up, or there is no such device.
        ArtifactError: the version is incomplete, altered or of an unknown format.
        CapacityError: the host or a device has too little memory; names it, with figures.
        LostMemoryError: a table file has become shorter meanwhile.
        PlanError: a front has no host to ask for some of the rows; names the host.
        RowReadError: a table file cannot be read.
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
        front=front,
        row_memory_bytes=row_memory_bytes,
        products=products,
        progress=progress,
    )
