"""Deltas of every row format, with and without id maps, have the bits of a whole publication.

Two deltas of a model with a table of each kind change, add and remove ids. They and the compacted
version are compared with whole publications of the same weights, as one process answers, and as a
front with two shard hosts does; from a folder and from a bucket.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.row_format import RowFormat
from sharded_infer import ModelSpec, Repository, TableSpec, TowerSpec, open_model, publish
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.planning.plan import Plan
from sharded_infer.publishing.deltas.compaction import compact
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.repositories.version_copy import copy_version
from sharded_infer.specs.id_map_spec import IdMapSpec, SharedRows
from sharded_infer.specs.quantization_spec import GateSpec
from tests.sharded_infer.lookups.test_random_plans import KINDS, random_plan
from tests.support.fronts import hosts_file
from tests.support.marked_rows import Rows
from tests.support.raw_cluster import replace_plan
from tests.support.raw_ids import source_of
from tests.support.servers import RunningServer, running_server
from tests.support.shard_host_processes import end_all, running_shard_host
from tests.support.traffic import client_of, states, triton_inputs
from tests.support.waiting import until

HOSTS = 2
ROWS = 40
DELTAS, WHOLE = "deltas", "whole"
Arrays = dict[str, NDArray[np.int64]]


class Step(NamedTuple):
    """What a delta does, by the numbers of ids; tables without id maps keep what is removed."""

    changed: tuple[int, ...]
    new: tuple[int, ...]
    removed: tuple[int, ...]

    def touched(self, table: TableSpec) -> set[int]:
        return {*self.changed, *self.new, *(self.removed if table.id_map is not None else ())}


# The second changes rows that the first has changed and added, adds an id again that the first has
# removed, and removes one that the first has added.
STEPS = (
    Step(changed=(3, 7, 11, 39), new=(40, 41, 42), removed=(5, 6)),
    Step(changed=(7, 12, 41, 5), new=(43, 44), removed=(8, 42)),
)
UNCHANGED, UNKNOWN = (0, 1, 38), (45,)
# Row of an id that never changes: unknown ids may read it.
SHARED_ROW = ROWS - 1 - UNCHANGED[-1]
TABLES = tuple(
    TableSpec(
        f"{row_format}_{name}",
        ROWS,
        dim=4 * (2 + number % 2),
        pooling=("sum", "mean")[number % 2],
        format=row_format,
        out_of_range="error" if id_map is not None else "ignore",
        id_map=id_map,
    )
    for number, row_format in enumerate(RowFormat)
    for name, id_map in (
        ("plain", None),
        ("zero", IdMapSpec("zero")),
        ("shared", IdMapSpec(SharedRows((SHARED_ROW,)))),
    )
)


@dataclass(frozen=True)
class Trained:
    """What a table has been trained to.

    Attributes:
        rows: of each raw id; None: ids are rows.
    """

    weights: Tensor
    rows: Mapping[int, int] | None

    def after(self, changes: ChangedRows) -> "Trained":
        """New ids have the next rows."""
        assert changes.values is not None
        rows = None if self.rows is None else dict(self.rows)
        weights = [*self.weights]
        for raw, values in zip(changes.ids.tolist(), changes.values, strict=True):
            row = raw if rows is None else rows.setdefault(raw, len(weights))
            weights[row : row + 1] = [values]
        if rows is not None:
            for raw in changes.removed.tolist():
                del rows[raw]
        return Trained(torch.stack(weights), rows)


Model = dict[str, Trained]


def raw_ids(table: TableSpec, numbers: Sequence[int]) -> NDArray[np.int64]:
    """The ids of some numbers."""
    if table.id_map is None:
        return np.array(numbers, np.int64)
    drawn = np.random.default_rng(len(table.name)).integers(-(2**63), 2**63 - 1, 2 * ROWS)
    return drawn[list(numbers)]


def trained() -> Model:
    """The base."""
    generator = torch.Generator().manual_seed(1)
    found = {}
    for table in TABLES:
        weights = torch.randn(ROWS, table.dim, generator=generator)
        ids = raw_ids(table, range(ROWS)).tolist()
        rows = {raw: ROWS - 1 - number for number, raw in enumerate(ids)}
        found[table.name] = Trained(weights, None if table.id_map is None else rows)
    return found


def changes_of(step: Step) -> dict[str, ChangedRows]:
    generator = torch.Generator().manual_seed(step.new[0])
    changes = {}
    for table in TABLES:
        ids = raw_ids(table, step.changed + step.new)
        values = torch.randn(len(ids), table.dim, generator=generator)
        removed = raw_ids(table, () if table.id_map is None else step.removed)
        changes[table.name] = ChangedRows(ids, values, removed=removed)
    return changes


def publish_model(name: str, model: Model, repository: Path) -> Path:
    """Publishes all rows; the version's folder."""
    spec = ModelSpec(
        name,
        tuple(replace(table, rows=len(model[table.name].weights)) for table in TABLES),
        tower=TowerSpec(outputs=("rows",)),
        # Of rows in int2, which are compared as they are.
        gate=GateSpec(max_score_diff=100.0),
    )
    return publish(
        spec,
        {table: one.weights for table, one in model.items()},
        Rows(),
        repository,
        topologies=(f"cpu:{2 * HOSTS}",),
        id_maps={t: source_of(dict(one.rows)) for t, one in model.items() if one.rows is not None},
    ).path


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base and the whole publications in a folder; their plans cut tables in each way."""
    repository = tmp_path_factory.mktemp("equality") / "models"
    model = trained()
    base = publish_model(DELTAS, model, repository)
    manifest = open_artifact(base).manifest
    [topology] = manifest.plans
    generator, tables = np.random.default_rng(4), manifest.stored_tables()
    plan = random_plan(generator, HOSTS, kinds=KINDS, tables=tables, name=topology)
    replace_plan(base, plan)
    for step in STEPS:
        changes = changes_of(step)
        model = {name: one.after(changes[name]) for name, one in model.items()}
        # The sum of a bag is added up in the order that the plan says.
        replace_plan(publish_model(WHOLE, model, repository), grown(plan, model))
    return repository


def grown(plan: Plan, model: Model) -> Plan:
    """A base's plan, with the new rows of each table in its last shards."""
    shards = (
        replace(one, last_row=len(model[one.table].weights)) if one.last_row == ROWS else one
        for one in plan.shards
    )
    return replace(plan, shards=tuple(shards))


@pytest.fixture
def repository(published: Path, stored: Repository) -> Repository:
    """A folder or a bucket with the base and the whole publications."""
    for model in (DELTAS, WHOLE):
        for version in Repository(published).versions(model):
            copy_version(Repository(published), model, version, stored)
    return stored


@pytest.fixture
def servers(repository: Repository, tmp_path: Path) -> Iterator[dict[str, RunningServer]]:
    """One process, and a front of two shard hosts."""
    location, options = repository.location, ("--poll-seconds", 0.1)
    with ExitStack() as stack:
        hosts = {
            number: stack.enter_context(
                running_shard_host(location, number, tmp_path / f"host{number}", *options)
            )
            for number in range(HOSTS)
        }
        stack.callback(end_all, hosts.values())
        named = ("--shard-hosts", hosts_file(tmp_path, hosts, "timeout_ms = 60000"))
        # As many as shard hosts hold.
        options = ("--follow", "latest:2", *options)
        yield {
            name: stack.enter_context(running_server(location, tmp_path / name, *more, *options))
            for name, more in (("one process", ()), ("shard hosts", named))
        }


def asked_numbers() -> list[int]:
    """Changed, new, removed, unchanged and unknown ids."""
    numbers = {*UNCHANGED, *UNKNOWN}
    return sorted(numbers.union(*(number for step in STEPS for number in step)))


def request() -> Arrays:
    """One sample for each number that is asked for, and then bags of several."""
    numbers = asked_numbers()
    generator = np.random.default_rng(6)
    lengths = np.concatenate([np.ones(len(numbers), np.int64), generator.integers(0, 7, 30)])
    drawn = [*numbers, *generator.choice(numbers, lengths.sum() - len(numbers)).tolist()]
    arrays = {}
    for table in TABLES:
        arrays[table.name] = raw_ids(table, drawn)
        arrays[f"{table.name}.lengths"] = lengths
    return arrays


def answer(server: RunningServer, model: str, version: int) -> NDArray[np.float32]:
    """What a version answers once it is served."""
    with client_of(server) as client:
        until(lambda: states(client, model).get(version) == ("READY", ""), "it is served")
        result = client.infer(model, triton_inputs(request()), model_version=str(version))
    assert result.get_response().model_version == str(version)
    rows: NDArray[np.float32] = result.as_numpy("rows")
    return rows


def test_deltas_have_the_bits_of_whole_publications(
    published: Path, repository: Repository, servers: dict[str, RunningServer]
) -> None:
    before = {name: answer(server, DELTAS, 1) for name, server in servers.items()}
    for whole, step in enumerate(STEPS, 1):
        expected = open_model(published / WHOLE / str(whole)).predict(request())["rows"]
        delta = publish_delta(DELTAS, changes_of(step), repository).version
        for name, server in servers.items():
            found = answer(server, DELTAS, delta)
            assert found.tobytes() == expected.tobytes(), (name, delta)
            assert answer(server, WHOLE, whole).tobytes() == expected.tobytes(), (name, whole)
            check_touched(before[name], found, step)
            before[name] = found
    compacted = compact(repository, DELTAS).version
    for name, server in servers.items():
        assert answer(server, DELTAS, compacted).tobytes() == before[name].tobytes(), name


def check_touched(before: NDArray[np.float32], after: NDArray[np.float32], step: Step) -> None:
    """Answers to single ids differ where the step has touched them, and nowhere else."""
    left = 0
    for table in TABLES:
        columns = slice(left, left := left + table.dim)
        pairs = zip(before[:, columns], after[:, columns], strict=True)
        # The samples after these are bags of several.
        single = zip(asked_numbers(), pairs, strict=False)
        differing = {number for number, (old, new) in single if not np.array_equal(old, new)}
        assert differing == step.touched(table), table.name
