"""Preparation and checks of a version's inputs before anything is written."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import nn

from sharded_infer.errors import ArtifactError, NotFoundError, SpecError
from sharded_infer.inputs.model_input import ModelInput
from sharded_infer.planning.cost_model import CostModel, plan_key
from sharded_infer.planning.plan import Plan, check_plan
from sharded_infer.planning.planner import make_plan
from sharded_infer.planning.table_use import TableUse, table_uses
from sharded_infer.planning.topology_file import parse_topology
from sharded_infer.progress import Progress
from sharded_infer.publishing.format_selection import FormatPlan
from sharded_infer.quality.fp32_model import TRAINED, Fp32Model
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.tower import export_tower

# Samples used to calibrate an int8 tower.
TOWER_SAMPLES = 1024


@dataclass(frozen=True, slots=True)
class PlannedTables:
    """Storage and placement of tables: `plans` by topology, made in `seconds`, `uses` by table."""

    formats: FormatPlan
    plans: dict[str, Plan]
    uses: Mapping[str, TableUse]
    seconds: float


@dataclass(frozen=True, slots=True)
class PreparedInputs:
    """Checked inputs of a publish: `tower` as trained, `program` as stored."""

    planned: PlannedTables
    tower: nn.Module
    program: torch.export.ExportedProgram

    @property
    def formats(self) -> FormatPlan:
        """The storage of tables."""
        return self.planned.formats

    @property
    def spec(self) -> ModelSpec:
        """The model; every table has its format."""
        return self.formats.spec


def plan_tables(
    formats: FormatPlan,
    *,
    repository: Repository,
    topologies: Sequence[str],
    statistics: Mapping[str, FeatureStatistics] | None,
    batch: int,
    wholes: Collection[str] = (),
) -> PlannedTables:
    """Make the plans of a publish, with its arguments and errors.

    Still valid plans of the latest version are reused. Hosts never map the ids of `wholes` in
    parts.
    """
    if not topologies:
        raise SpecError("topologies: expected at least one, such as cpu:1")
    started = perf_counter()
    devices = [parse_topology(topology) for topology in topologies]
    uses = {
        use.table.name: replace(use, in_parts=use.in_parts and use.table.name not in wholes)
        for use in table_uses(formats.spec, statistics)
    }
    loads = [CostModel(uses, topology, batch) for topology in devices]
    plans = {load.topology.name: _plan(load, repository, formats.spec.name) for load in loads}
    for plan in plans.values():
        check_plan(plan, {table.name: table for table in formats.tables})
    return PlannedTables(formats, plans, uses, perf_counter() - started)


def prepare_inputs(
    planned: PlannedTables, tower: nn.Module, samples: ModelInput | None, progress: Progress
) -> PreparedInputs:
    """Export the tower; TowerError as `publish`. `samples` calibrate an int8 tower."""
    spec = planned.formats.spec
    progress("exporting the tower", 0, 1)
    program = export_tower(
        tower,
        dense=spec.dense.inputs,
        embedding_width=spec.embedding_width,
        outputs=spec.tower.outputs,
        sequences=spec.tower_sequences,
        precision=spec.tower.precision,
        calibration=_tower_inputs(planned.formats, tower, samples),
        embedding_text=spec.embedding_text,
    )
    progress("exporting the tower", 1, 1)
    return PreparedInputs(planned, tower, program)


def _tower_inputs(
    formats: FormatPlan, tower: nn.Module, samples: ModelInput | None
) -> list[torch.Tensor] | None:
    if formats.spec.tower.precision is not Precision.INT8 or samples is None:
        return None
    first = samples.samples(0, min(TOWER_SAMPLES, samples.batch_size))
    model = Fp32Model(formats.spec, formats.weights, tower)
    [embeddings] = model.pooled(first, [TRAINED])
    return model.tower_inputs(first, embeddings)


def _plan(load: CostModel, repository: Repository, model: str) -> Plan:
    """The previous version's plan if its inputs have not changed, or a new one."""
    # A new version for the same tables and devices then moves nothing.
    with suppress(NotFoundError, ArtifactError):
        previous = repository.open(model).plan(load.topology.name)
        if previous.key == plan_key(load):
            return previous
    return make_plan(load).plan
