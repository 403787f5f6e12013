"""Makes a snapshot of a version's verified files: opened, warmed up, golden requests scored."""

import logging
from collections.abc import Mapping
from pathlib import Path

from serving.cost_table import CostTable
from serving.freed_memory import anonymous_bytes
from serving.input_check import InputCheck
from serving.lane import Lane
from serving.load_phases import LoadPhases
from serving.metrics import VersionMetrics
from serving.predict_encoder import PredictEncoder
from serving.request_decoder import RequestDecoder
from serving.response_encoder import ResponseEncoder
from serving.snapshot import ServingOverrides, Snapshot, measure_costs
from serving.spare_memory import available_bytes, check_fits, held_bytes, needed_bytes
from serving.version_facts import VersionFacts
from serving.wire_form import WireForm
from sharded_infer.address_space import address_space_left, is_short_of_memory, memory_short
from sharded_infer.artifact import Artifact, open_artifact
from sharded_infer.device.device_choice import DeviceChoice
from sharded_infer.errors import CapacityError, DeviceError, PlanError
from sharded_infer.model import Model
from sharded_infer.model_check import check_golden
from sharded_infer.plan import Plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.sizes import size_text
from sharded_infer.table_memory import HUGE_PAGE_BYTES, TableMemory

_log = logging.getLogger("sharded_infer")
# Less of the tables than this in huge pages is worth a warning.
_MOST_HUGE = 0.9


class VersionLoader:
    """Loads versions for one server, in whichever process calls."""

    def __init__(
        self,
        *,
        topology: str | None,
        max_batch: int,
        overrides: ServingOverrides | None = None,
    ) -> None:
        """Keeps what holds for all versions.

        Args:
            topology: which published plan to use; None takes each version's first.
            max_batch: samples of a request.
            overrides: how requests are put together.
        """
        self._topology = topology
        self.max_batch = max_batch
        self.overrides = overrides or ServingOverrides()
        # By what kernels are compiled for: costs of models that this process has run.
        self._known: dict[str, Mapping[int, float]] = {}

    def load(
        self,
        path: Path,
        metrics: VersionMetrics,
        *,
        phases: LoadPhases,
        progress: Progress = no_progress,
    ) -> Snapshot:
        """Loads a version: map or copy, every batch size, golden requests.

        Args:
            path: the folder of its files, verified.
            metrics: where it is counted.
            phases: told how long each step takes.
            progress: told how far copying and warming up are.

        Raises:
            ArtifactError: the version is damaged.
            CapacityError: the host or a device has too little memory; says which, with figures.
            GateError: it does not score its golden requests as it should.
            PlanError: its plan needs cards, and there are none; says what else can be done.
        """
        try:
            return self._loaded(path, metrics, phases, progress)
        except (MemoryError, OSError, RuntimeError) as error:
            if not is_short_of_memory(error):
                raise
            raise memory_short(f"{path}: loading it") from error

    def _loaded(
        self, path: Path, metrics: VersionMetrics, phases: LoadPhases, progress: Progress
    ) -> Snapshot:
        with phases.phase("open"):
            artifact = open_artifact(path)
            plan = artifact.plan(self._topology)
            devices = self._devices(plan)
        with phases.phase("memory"):
            self._check_memory(artifact, on_cards=devices is not None)
        with phases.phase("open"):
            try:
                model = Model(
                    artifact, plan, memory=self.overrides.memory, devices=devices, progress=progress
                )
            except DeviceError as error:
                raise PlanError(_without_cards(artifact, plan, error)) from error
            self._map_pages(model, progress)
        with phases.phase("golden"):
            difference = check_golden(model)
        with phases.phase("warm_up"):
            kernels = _kernels_of(model)
            known = self._known.get(kernels)
            costs = measure_costs(model, self.max_batch, progress, known=known)
            self._known[kernels] = costs
        metrics.describe(_facts_of(model))
        outputs = model.spec.tower.outputs
        check = InputCheck(model.spec, self.overrides.limits)
        snapshot = Snapshot(
            model=model,
            decoder=RequestDecoder(model.spec, max_batch=self.max_batch, check=check),
            encoder=ResponseEncoder(model.name, model.version, outputs),
            predict_decoder=RequestDecoder(
                model.spec, max_batch=self.max_batch, check=check, form=WireForm.PREDICT
            ),
            predict_encoder=PredictEncoder(model.name, model.version, outputs),
            lane=Lane(self.overrides.lane_policy(model), CostTable(costs)),
            metrics=metrics,
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
                "golden_difference": float(f"{difference:.2g}"),
                "executor": snapshot.lane.policy.mode.value,
                "one_sample_ms": float(f"{costs[1] * 1e3:.3g}"),
                "largest_batch_ms": float(f"{costs[max(costs)] * 1e3:.3g}"),
            },
        )
        _report_memory(model)
        return snapshot

    def _devices(self, plan: Plan) -> DeviceChoice | None:
        """What a plan is executed on; None: the host.

        Raises:
            PlanError: it is for cards, and this server has several processes.
        """
        if not plan.has_cards:
            return None
        if self.overrides.devices is None:
            raise PlanError(
                f"plan for {plan.topology.name!r}: cards are served by one process, expected "
                "--workers 1"
            )
        return self.overrides.devices

    def _check_memory(self, artifact: Artifact, *, on_cards: bool) -> None:
        """Says what a version takes and what there is; refuses a copy that cannot fit.

        Mapped tables may be larger than memory: the kernel takes their pages back. It is said then.
        """
        manifest = artifact.manifest
        chosen = self.overrides.memory or TableMemory(manifest.model_spec().serving.memory)
        memory = TableMemory.MAP if on_cards else chosen
        needed, available = needed_bytes(manifest, memory, 1), available_bytes()
        what = f"{manifest.model} version {manifest.version}"
        about = {"model": manifest.model, "version": manifest.version}
        tables = manifest.table_bytes
        held, process = held_bytes(manifest, memory, 1), anonymous_bytes()
        _log.info(
            "%s takes %s of memory: its tables %s (%s), its tower and kernels %s; this process "
            "holds %s without it, %s are available",
            what, size_text(held), size_text(tables), memory.value, size_text(held - tables),
            size_text(process), size_text(available), extra=about,
        )  # fmt: skip
        if memory is TableMemory.HUGE:
            check_fits(needed, available, 0, what)
        elif tables > available:
            _log.warning(
                "%s: tables of %s are mapped, but %s of memory are available: rows will be read "
                "from the disk, and slowly",
                what, size_text(tables), size_text(available), extra=about,
            )  # fmt: skip
        left = address_space_left()
        if left is not None and needed > left:
            raise CapacityError(
                f"{what} does not fit: it takes {size_text(needed)}, {size_text(left)} are left of "
                "this process's address space (ulimit -v)"
            )

    def _map_pages(self, model: Model, progress: Progress) -> None:
        """Where everything fits: what is read in vain would drive out what serves."""
        if model.engine.waits or model.artifact.manifest.table_bytes > available_bytes():
            return
        if not model.map_pages(progress):
            _log.info(
                "%s version %d: this kernel maps pages only as requests need them",
                model.name,
                model.version,
                extra={"model": model.name, "version": model.version},
            )


def _without_cards(artifact: Artifact, plan: Plan, error: DeviceError) -> str:
    """Which version cannot be served for want of cards, and what can be done."""
    manifest = artifact.manifest
    hosts = [name for name in manifest.plans if not artifact.plan(name).has_cards]
    instead = (
        f"--topology {hosts[0]} takes its plan for the host"
        if hosts
        else "publish it for the host too (publish --topology cpu:N)"
    )
    return (
        f"model {manifest.model!r} version {manifest.version}: its plan for "
        f"{plan.topology.name!r} needs cards: {error}. Without them: {instead}, or "
        "--rehearse-cards plays the cards on the host, slowly"
    )


def _facts_of(model: Model) -> VersionFacts:
    spec = model.spec
    return VersionFacts(
        objective_seconds=spec.serving.latency_objective_ms / 1000,
        rank_bytes=tuple(model.rank_bytes),
        outputs=spec.tower.outputs,
        features=tuple(feature.name for feature in spec.features),
    )


def _kernels_of(model: Model) -> str:
    tables = [(f.table.dim, f.table.pooling, str(f.table.format)) for f in model.spec.features]
    return f"{model.tower_signature()} {tables}"


def _report_memory(model: Model) -> None:
    about = {"model": model.name, "version": model.version}
    for line in model.engine.memory_report():
        _log.info("%s version %d: %s", model.name, model.version, line, extra=about)
    if model.memory is TableMemory.MAP:
        return
    huge, total = model.huge_page_bytes(), model.artifact.manifest.table_bytes
    little = huge < _MOST_HUGE * total and total >= HUGE_PAGE_BYTES
    _log.log(
        logging.WARNING if little else logging.INFO,
        "%s version %d: %s of its %s of tables lie in huge pages%s",
        model.name,
        model.version,
        size_text(huge),
        size_text(total),
        ": see /sys/kernel/mm/transparent_hugepage/enabled" if little else "",
        extra=about,
    )
