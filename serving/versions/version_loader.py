"""Loads a version from verified files: opens it, scores its golden requests, warms it up."""

import logging
from collections.abc import Mapping
from pathlib import Path

from serving.host.malloc import anonymous_bytes
from serving.host.memory import available_bytes
from serving.metrics.families.model_families import HOSTS_PHASE, OPEN_PHASE
from serving.metrics.server_metrics import VersionMetrics
from serving.metrics.version_info import MappedTable, VersionInfo
from serving.protocol.readers.input_reader import InputReader
from serving.scheduler.version_queue import VersionQueue
from serving.versions.load_phases import LoadPhases
from serving.versions.loaded_version import LoadedVersion, ServingOverrides
from serving.versions.memory_fit import (
    check_fits,
    choose_memory,
    held_bytes,
    needed_bytes,
    row_bytes,
)
from serving.versions.warm_up import measure_costs, run_recorded
from sharded_infer.address_space import address_space_left, is_short_of_memory, memory_short
from sharded_infer.artifacts.artifact import Artifact, open_artifact
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.artifacts.file_pages import MOST_HUGE
from sharded_infer.artifacts.mapped_tables import read_tables_large
from sharded_infer.artifacts.table_memory import (
    TableMemory,
    copies_are_huge,
    copy_to_huge_pages,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model
from sharded_infer.errors import CapacityError, DeviceError, PlanError
from sharded_infer.planning.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import ProductsOption, faster_precision

_log = logging.getLogger("sharded_infer")


class VersionLoader:
    """Loads versions for one server, in the calling process."""

    def __init__(
        self,
        *,
        topology: str | None,
        max_batch: int,
        overrides: ServingOverrides | None = None,
    ) -> None:
        """Stores the settings; `topology` selects the plan, None each version's first."""
        self._topology = topology
        self.max_batch = max_batch
        self.overrides = overrides or ServingOverrides()
        # Measured costs of batches, by the shapes that kernels are compiled for.
        self._known: dict[str, Mapping[int, float]] = {}

    def load(
        self,
        path: Path,
        metrics: VersionMetrics,
        *,
        phases: LoadPhases,
        progress: Progress = no_progress,
    ) -> LoadedVersion:
        """Loads a version: maps or copies its tables, scores its golden requests, warms it up.

        Args:
            path: folder of its verified files.
            progress: of copying and warming up.

        Raises:
            ArtifactError: the version is damaged.
            CapacityError: the host or a device has too little memory; says which, with figures.
            GateError: the scores of its golden requests differ too much.
            PlanError: its plan needs GPUs that this server does not have; says what can be done.
        """
        try:
            return self._loaded(path, metrics, phases, progress)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_short_of_memory(error):
                raise
            raise memory_short(f"{path}: loading it") from error

    def _loaded(
        self, path: Path, metrics: VersionMetrics, phases: LoadPhases, progress: Progress
    ) -> LoadedVersion:
        with phases.phase(OPEN_PHASE):
            artifact = open_artifact(path)
            plan = artifact.plan(self._topology)
            devices = self._devices(plan)
        with phases.phase(HOSTS_PHASE):
            front_of = self.overrides.front_of
            front = None if front_of is None else front_of(artifact, plan)
        with phases.phase("memory"):
            if front is not None:
                # Most rows are elsewhere.
                memory = self._asked_memory(artifact)
            else:
                memory = self._table_memory(artifact, progress, on_gpus=devices is not None)
                self._check_memory(artifact, memory)
        copies = self.overrides.copies
        with phases.phase(OPEN_PHASE):
            try:
                model = Model(
                    artifact,
                    plan,
                    memory=memory,
                    copy_file=copy_to_huge_pages if copies is None else copies.copy,
                    devices=devices,
                    front=front,
                    user_states=self.overrides.user_states,
                    row_memory_bytes=self.overrides.own_row_memory_bytes,
                    products=self.overrides.products,
                    progress=progress,
                )
            except DeviceError as error:
                raise PlanError(_without_gpus(artifact, plan, error)) from error
            self.map_pages(model, progress)
            huge_page_bytes = model.huge_page_bytes()
        with phases.phase("golden"):
            difference = check_golden(model)
        with phases.phase("warm_up"):
            kernels = _kernels_of(model)
            known = self._known.get(kernels)
            costs = measure_costs(model, self.max_batch, progress, known=known)
            self._known[kernels] = costs
            if self.overrides.warm_from is not None:
                run_recorded(model, self.overrides.warm_from)
        metrics.describe(_facts_of(model))
        loaded_version = LoadedVersion(
            model=model,
            reader=InputReader(
                model.spec,
                max_batch=self.max_batch,
                limits=self.overrides.limits,
                id_maps=model.row_maps,
                unknown_ids=metrics.mapped_ids.unknown,
            ),
            queue=VersionQueue(self.overrides.batching_policy(model), costs),
            metrics=metrics,
            huge_page_bytes=huge_page_bytes,
        )
        _log.info(
            "loaded %s version %d",
            model.name,
            model.version,
            extra={
                "model": model.name,
                "version": model.version,
                "plan": plan.topology.name,
                "kernels": [f"{rows} {kernel}" for rows, kernel in model.engine.backends.items()],
                **({} if model.products is None else {"products": model.products.text}),
                **({} if model.users is None else {"user_states": model.kept_states}),
                "golden_difference": float(f"{difference:.2g}"),
                "executor": loaded_version.queue.policy.mode.value,
                "one_sample_ms": float(f"{costs[min(costs)] * 1e3:.3g}"),
                "largest_batch_ms": float(f"{costs[max(costs)] * 1e3:.3g}"),
            },
        )
        if self.overrides.products is ProductsOption.AUTO:
            _report_products(model)
        _report_memory(model, huge_page_bytes)
        return loaded_version

    def _devices(self, plan: Plan) -> DeviceChoice | None:
        """Devices that run a plan; None means the host.

        Raises PlanError if the plan needs GPUs, and this server has several processes.
        """
        if not plan.has_gpus:
            return None
        if self.overrides.devices is None:
            raise PlanError(
                f"plan for {plan.topology.name!r}: GPUs are served by one process, expected "
                "--workers 1"
            )
        return self.overrides.devices

    def _table_memory(
        self, artifact: Artifact, progress: Progress, *, on_gpus: bool
    ) -> TableMemory:
        """Memory for a version's tables; "auto" is resolved from its files."""
        manifest, asked = artifact.manifest, self._asked_memory(artifact)
        # Tiers read rows themselves.
        if on_gpus or self.overrides.row_memory_bytes is not None:
            return TableMemory.MAP
        if asked is not TableMemory.AUTO:
            return asked
        if manifest.table_bytes > available_bytes():
            # Huge pages would repeatedly read much that no request needs.
            return TableMemory.MAP
        huge_page_bytes = read_tables_large(artifact, progress)
        shares, processes = self.overrides.copies is not None, self.overrides.processes
        needed = needed_bytes(
            manifest,
            TableMemory.HUGE,
            processes,
            shares_copies=shares,
            products=self.overrides.products,
        )
        return choose_memory(
            manifest,
            huge_page_bytes=huge_page_bytes,
            copy_needs=max(0, needed - self.overrides.shared_bytes(artifact)),
            available=available_bytes() if shares or copies_are_huge() else 0,
        )

    def _asked_memory(self, artifact: Artifact) -> TableMemory:
        spec = artifact.manifest.model_spec()
        return self.overrides.memory or TableMemory(spec.serving.memory)

    def _check_memory(self, artifact: Artifact, memory: TableMemory) -> None:
        """Logs needed and available memory; refuses a copy that cannot fit.

        Mapped tables may exceed memory, as the kernel can reclaim their pages; then a warning is
        logged.
        """
        manifest = artifact.manifest
        bound, available = self.overrides.own_row_memory_bytes, available_bytes()
        products = self.overrides.products
        needed = needed_bytes(manifest, memory, 1, row_memory_bytes=bound, products=products)
        what = f"{manifest.model} version {manifest.version}"
        about = {"model": manifest.model, "version": manifest.version}
        tables = row_bytes(manifest, bound)
        held = held_bytes(manifest, memory, 1, row_memory_bytes=bound, products=products)
        process = anonymous_bytes()
        _log.info(
            "%s takes %s of memory: its tables %s (%s), its tower and kernels %s; this process "
            "holds %s without it, %s are available",
            what, size_text(held), size_text(tables), memory.value, size_text(held - tables),
            size_text(process), size_text(available), extra=about,
        )  # fmt: skip
        if memory is TableMemory.HUGE:
            # Before available memory is read, since this waits.
            shared = self.overrides.shared_bytes(artifact)
            check_fits(max(0, needed - shared), available_bytes(), 0, what)
        elif tables > available:
            _log.warning(
                "%s: tables of %s are mapped, but %s of memory are available: rows will "
                "be read from the disk, slowly",
                what, size_text(tables), size_text(available), extra=about,
            )  # fmt: skip
        left = address_space_left()
        if left is not None and needed > left:
            raise CapacityError(
                f"{what} does not fit: it takes {size_text(needed)}, {size_text(left)} are left of "
                "this process's address space (ulimit -v)"
            )

    def map_pages(self, model: Model, progress: Progress = no_progress) -> None:
        """Maps all pages now if they fit in memory; otherwise they would evict pages in use."""
        if model.engine.waits or model.table_bytes > available_bytes():
            return
        if not model.map_pages(progress):
            _log.info(
                "%s version %d: this kernel maps pages only as requests need them",
                model.name,
                model.version,
                extra={"model": model.name, "version": model.version},
            )


def _without_gpus(artifact: Artifact, plan: Plan, error: DeviceError) -> str:
    """Message about a version that cannot be served without GPUs, and the remedies."""
    manifest = artifact.manifest
    hosts = [name for name in manifest.plans if not artifact.plan(name).has_gpus]
    instead = (
        f"--topology {hosts[0]} takes its plan for the host"
        if hosts
        else "publish it for the host too (publish --topology cpu:N)"
    )
    return (
        f"model {manifest.model!r} version {manifest.version}: its plan for "
        f"{plan.topology.name!r} needs GPUs: {error}. Without them: {instead}, or "
        "--simulate-gpus simulates them on the host, slowly"
    )


def _facts_of(model: Model) -> VersionInfo:
    spec = model.spec
    features = spec.input_features
    return VersionInfo(
        objective_seconds=spec.serving.latency_objective_ms / 1000,
        rank_bytes=tuple(model.rank_bytes),
        outputs=spec.tower.outputs,
        features=tuple(feature.name for feature in features),
        mapped=tuple(
            MappedTable(
                table.name,
                tuple(at for at, feature in enumerate(features) if feature.table is table),
                # Ids that shard hosts leave out are in their bags here.
                table.name in model.id_maps and model.id_maps[table.name].unknown == "zero",
            )
            for table in spec.mapped_tables
        ),
        tiered=() if model.row_memory is None else tuple(model.row_memory.tiers),
        products=""
        if model.products is None
        else f"{model.products.published}, {model.products.running}",
    )


def _kernels_of(model: Model) -> str:
    tables = [
        (f.table.dim, f.table.pooling, str(f.table.format)) for f in model.spec.table_features
    ]
    return f"{model.tower_signature()} {tables}"


def _report_products(model: Model) -> None:
    """Warns where another published precision would be faster than fp32, which runs here."""
    products = model.products
    if products is None or products.published in (Precision.FP32, Precision.TF32):
        return
    if (faster := faster_precision(products)) is None:
        return
    _log.warning(
        "model %s version %d: published in %s, runs in fp32 here (%s); published in %s it may "
        "run faster on this machine",
        model.name, model.version, products.published, products.reason, faster,
        extra={"model": model.name, "version": model.version},
    )  # fmt: skip


def _report_memory(model: Model, huge_page_bytes: int) -> None:
    about = {"model": model.name, "version": model.version}
    for line in model.engine.memory_report():
        _log.info("%s version %d: %s", model.name, model.version, line, extra=about)
    if model.engine.waits:
        return
    total = model.table_bytes
    copied = model.memory is TableMemory.HUGE
    little = huge_page_bytes < MOST_HUGE * total and total >= HUGE_PAGE_BYTES
    _log.log(
        logging.WARNING if little and copied else logging.INFO,
        "%s version %d: its tables are %s: %s in 2 MiB pages, %s in 4 KiB pages%s",
        model.name,
        model.version,
        "copied" if copied else "mapped",
        size_text(huge_page_bytes),
        size_text(max(0, total - huge_page_bytes)),
        ": see /sys/kernel/mm/transparent_hugepage/enabled" if little and copied else "",
        extra=about,
    )
