"""Default rows of tables with raw ids for a shard host that is killed, as clients see them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from kernels.ids.partition import partition_hashes
from sharded_infer.engines.model import Model, open_model
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.lookups.placement import place_stored, raw_hashes, share_of
from tests.end_to_end.test_default_rows import Expected, check_scores, parameter
from tests.support.fronts import SECONDS, hosts_file
from tests.support.raw_cluster import SPEC, TABLES, publish_raw_parts, raw_inputs
from tests.support.servers import Arrays, infer_request, running_server, scores_of
from tests.support.shard_host_processes import running_shard_host

HOSTS, LOST, BATCH = 2, 1, 6
# Above what a request may take.
LONG = f"timeout_ms = {2000 * SECONDS:.0f}"


def without_raw_host(model: Model, inputs: Arrays) -> Expected:
    """The tower on embeddings that were pooled anew, where an id is of a part on the lost host.

    Of the ids that hosts map it is not known which of them the lost one would know: all count.
    """
    embeddings = model.engine.embeddings(make_input(model.spec, inputs))[:BATCH]
    pieces = share_of(place_stored(model.plan, model.artifact), LOST)
    column, tables = 0, set()
    for feature in model.spec.features:
        table, end = feature.table, column + feature.table.dim
        own = [piece for piece in pieces if piece.table.name == table.name]
        starts = np.cumsum(inputs[f"{feature.name}.lengths"])[:-1]
        for sample, ids in enumerate(np.split(inputs[feature.name], starts)):
            places = ids
            ranges = [(piece.first_row, piece.first_row + piece.rows - 1) for piece in own]
            if table.id_map is not None and table.id_map.partition is not None:
                places = partition_hashes(ids)
                found = [raw_hashes(piece, table) for piece in own]
                ranges = [ends for ends in found if ends is not None]
            elif table.id_map is not None:
                known = model.id_maps[table.name].known(ids)
                places = np.where(known < 0, model.id_maps[table.name].unknown_rows(ids), known)
            else:
                places = ids[(ids >= 0) & (ids < table.rows)]
            if any(((first <= places) & (places <= last)).any() for first, last in ranges):
                count = 1 if table.pooling == "mean" else len(places)
                assert isinstance(table.default_row, tuple)
                embeddings[sample, column:end] = count * torch.tensor(table.default_row)
                tables.add(table.name)
        column = end
    scores = zip(
        model.spec.tower.outputs,
        model.score(make_input(model.spec, inputs), embeddings),
        strict=True,
    )
    return Expected({name: one.numpy() for name, one in scores}, ",".join(sorted(tables)))


def test_a_killed_host_costs_tables_with_default_rows_no_answer(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    spec = replace(
        SPEC,
        tables=tuple(replace(t, default_row=(0.5,) * t.dim) for t in TABLES),
    )
    version = publish_raw_parts(repository, HOSTS, spec=spec)
    model = open_model(version)
    asked = [raw_inputs(BATCH, seed) for seed in range(5)]
    expected = [without_raw_host(model, inputs) for inputs in asked]
    assert set().union(*(one.tables.split(",") for one in expected)) >= {"user", "item", "shop"}
    with (
        running_shard_host(repository, 0, tmp_path / "host") as host,
        running_shard_host(repository, LOST, tmp_path / "lost", exit_code=None) as lost,
    ):
        named = ("--shard-hosts", hosts_file(tmp_path, {0: host, LOST: lost}, LONG))
        with running_server(repository, tmp_path / "front", *named) as front, front.stub() as stub:
            for is_lost in (False, True):
                for inputs, wanted in zip(asked, expected, strict=True):
                    request = infer_request(inputs, model="raw")
                    response = stub.ModelInfer(request, timeout=SECONDS)
                    assert parameter(response) == (wanted.tables if is_lost else "")
                    check_scores(
                        scores_of(response), wanted.scores if is_lost else model.predict(inputs)
                    )
                if not is_lost:
                    lost.process.kill()
                    lost.process.wait()
