from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from kernels.errors import LostMemoryError
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.artifacts.mapped_tables import table_pieces
from sharded_infer.engines.host_engine import HostEngine
from sharded_infer.engines.model import open_model
from sharded_infer.errors import ShardHostError
from sharded_infer.lookups.placement import hold, place
from sharded_infer.lookups.plan_lookups import PlanLookups
from sharded_infer.lookups.shard_hosts import PieceBags
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.towers.tower import Tower
from tests.sharded_infer.lookups.test_fan_out import on_hosts, pooled_by
from tests.support.shard_hosts import Answer, ThreadedHosts

# On it a table is split by rows.
TOPOLOGY = "cpu:3x0.55KB"


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as running:
        yield running


def engine_of(path: Path, threads: ThreadPoolExecutor, *, lost: int | None = None) -> HostEngine:
    """An engine whose ranks are all on hosts of their own, one of them perhaps lost."""
    artifact = open_artifact(path)
    spec, tables = artifact.manifest.model_spec(), artifact.manifest.stored_tables()
    plan = on_hosts(artifact.plan(TOPOLOGY), (0, 1, 2))
    placed = place(plan, tables, {t.name: t.pieces for t in artifact.manifest.tables})
    held = hold(placed, table_pieces(artifact))
    answers: dict[int, Answer] = {
        host: partial(pooled_by, ShareLookups(spec, placed, held, host)) for host in range(3)
    }
    if lost is not None:
        answers[lost] = lose
    tower = Tower.load(
        path / artifact.manifest.tower.file,
        dense=spec.dense.inputs,
        embedding_width=spec.embedding_width,
        outputs=spec.tower.outputs,
    )
    lookups = PlanLookups(spec, placed, {}, hosts=ThreadedHosts(answers, threads))
    return HostEngine(lookups, tower, spec)


def lose(_groups: Sequence[PieceBags]) -> Sequence[Tensor]:
    raise LostMemoryError("it has lost its tables")


def test_hosts_that_answer_later_score_as_ranks_of_this_process(
    published_version: Path, threads: ThreadPoolExecutor
) -> None:
    model = open_model(published_version, topology=TOPOLOGY)
    engine = engine_of(published_version, threads)
    assert engine.backends == {}
    batch = generate_samples(model.spec, 7)
    scores = zip(engine.run(batch).scores, model.engine.run(batch).scores, strict=True)
    assert all(np.array_equal(found, expected) for found, expected in scores)


def test_a_host_that_fails_fails_the_batch_with_its_error(
    published_version: Path, threads: ThreadPoolExecutor
) -> None:
    engine = engine_of(published_version, threads, lost=2)
    batch = generate_samples(open_model(published_version).spec, 3)
    with pytest.raises(ShardHostError, match="shard host 2: it has lost its tables"):
        engine.run(batch)
