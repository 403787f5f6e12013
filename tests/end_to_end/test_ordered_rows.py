"""Ordered tables from the command line: one server, and a front with two hosts, have the same bits.

The same weights are published with their rows as trained too, and served beside them.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import Precision, SequenceInput, export_tower, write_changes, write_program
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from tests.support.fronts import SECONDS, hosts_file
from tests.support.raw_cluster import replace_plan
from tests.support.servers import Arrays, RunningServer, infer_request, run, running_server
from tests.support.servers import scores_of as outputs_of
from tests.support.shard_host_processes import end_all, running_shard_host
from tests.support.waiting import until

HOSTS, LONGEST, MODEL = 2, 12, "feed"
ORDER = ("--order-rows", "frequency")
QUICK = ("--poll-seconds", 0.1)
MODEL_TOML = f"""
name = "{MODEL}"

[[tables]]
name = "item"
rows = 600
dim = 16
format = "int8"
features = ["candidate", "clicked"]

[[tables]]
name = "user"
rows = 200
dim = 32
format = "int4"
pooling = "mean"
out_of_range = "modulo"
padding_idx = 3

[[tables]]
name = "page"
rows = 90
dim = 8
format = "bf16"
out_of_range = "ignore"
features = ["page", "read"]

[[tables]]
name = "shop"
rows = 40
dim = 4
format = "fp32"

[dense]
inputs = {{ price = 1 }}

[sequences.history]
max_length = {LONGEST}
features = ["clicked", "read"]

[tower]
program = "tower.pt2"
user_inputs = ["history"]
"""
ROWS = {"item": (600, 16), "user": (200, 32), "page": (90, 8), "shop": (40, 4)}
BEYOND = {"user": 50, "page": 5}  # ids outside of tables that take them
FEATURES = {"candidate": "item", "user": "user", "page": "page", "shop": "shop"}
HISTORY = {"clicked": "item", "read": "page"}
# By columns, whole on a host, and by rows: sums of these rows are exact in any order.
SHARDS = (
    Shard("item", 0, 0, 600, 0, 8),
    Shard("item", 1, 0, 600, 8, 16),
    Shard("user", 1, 0, 200, 0, 32),
    Shard("page", 0, 0, 30, 0, 8),
    Shard("page", 1, 30, 90, 0, 8),
    Shard("shop", 0, 0, 11, 0, 4),
    Shard("shop", 1, 11, 40, 0, 4),
)


class Tower(nn.Module):
    """Distinguishes the positions of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(60 + 24 + 1, 1)

    def forward(
        self, price: Tensor, history: Tensor, history_lengths: Tensor, embeddings: Tensor
    ) -> Tensor:
        places = torch.arange(history.shape[1]) + 1.0
        counts = history_lengths.clamp(min=1).to(torch.float32).unsqueeze(1)
        seen = (history * places.unsqueeze(1)).sum(1) / counts
        return torch.sigmoid(self.top(torch.cat([embeddings, seen, price], 1))).squeeze(1)


def trained_rows(name: str, count: int, seed: int) -> Tensor:
    """Whole numbers and halves for tables that are cut by rows; any for others."""
    generator, dim = torch.Generator().manual_seed(seed), ROWS[name][1]
    if name in ("page", "shop"):
        return torch.randint(-8, 9, (count, dim), generator=generator) / 2
    return torch.randn(count, dim, generator=generator)


def sample(generator: np.random.Generator) -> dict[str, Any]:
    """Few ids of each table are used often, and these lie anywhere."""

    def ids(table: str, count: int) -> list[int]:
        rows = ROWS[table][0]
        return [int(one) * 37 % rows for one in generator.zipf(1.4, count)]

    length = int(generator.integers(LONGEST + 3))
    history = {name: ids(table, length) for name, table in HISTORY.items()}
    pooled = {name: ids(table, 3) for name, table in FEATURES.items()}
    return {"price": float(generator.random()), **pooled, **history}


def request(batch: int, seed: int, new: int = 0) -> Arrays:
    """Ids of all rows and outside of them; some histories are longer than the sequence."""
    generator = np.random.default_rng(seed)
    inputs: Arrays = {"price": generator.random((batch, 1), np.float32)}
    history = generator.integers(0, LONGEST + 5, batch)
    for name, table in (FEATURES | HISTORY).items():
        lengths = history if name in HISTORY else generator.integers(0, 5, batch)
        beyond = BEYOND.get(table, 0)
        last = ROWS[table][0] + beyond + (new if table == "item" else 0)
        inputs[name] = generator.integers(-beyond, last, lengths.sum())
        inputs["history.lengths" if name in HISTORY else f"{name}.lengths"] = lengths
    return inputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What whoever trained the model leaves, published with rows in both orders."""
    folder = tmp_path_factory.mktemp("feed")
    weights = {name: trained_rows(name, rows, rows) for name, (rows, _) in ROWS.items()}
    torch.save(weights, folder / "weights.pt")
    (folder / "model.toml").write_text(MODEL_TOML)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        program = export_tower(
            Tower(),
            dense={"price": 1},
            embedding_width=60,
            outputs=("score",),
            precision=Precision.FP32,
            sequences={"history": SequenceInput(width=24, max_length=LONGEST)},
        )
    write_program(program, folder / "tower.pt2")
    generator = np.random.default_rng(0)
    lines = (json.dumps(sample(generator)) + "\n" for _ in range(200))
    (folder / "samples.jsonl").write_text("".join(lines))
    used = ("--samples", folder / "samples.jsonl", "--calibration", folder / "samples.jsonl")
    words = ("publish", "--spec", folder / "model.toml", "--weights", folder / "weights.pt", *used)
    done(*words, "-r", folder / "plain")
    done(*words, *ORDER, "-r", folder / "ordered", "--topology", "cpu:2")
    version = folder / "ordered" / MODEL / "1"
    [name] = open_artifact(version).manifest.plans
    replace_plan(version, Plan(Topology(name, tuple(Device(host=n) for n in range(HOSTS))), SHARDS))
    return folder


def done(*words: object) -> str:
    """What a command printed, which must succeed."""
    result = run(*words)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def servers(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RunningServer]]:
    """Of rows as trained, of ordered rows in one process, and of a front whose hosts have them."""
    logs = tmp_path_factory.mktemp("logs")
    options = ("--memory", "map", "--user-cache-mib", 16, *QUICK)
    with ExitStack() as stack:
        hosts = {
            number: stack.enter_context(
                running_shard_host(folder / "ordered", number, logs / f"host{number}", *QUICK)
            )
            for number in range(HOSTS)
        }
        stack.callback(end_all, hosts.values())
        asking = ("--shard-hosts", hosts_file(logs, hosts))
        started = {
            "plain": ("plain", ()),
            "whole": ("ordered", ()),
            "front": ("ordered", asking),
        }
        yield {
            name: stack.enter_context(
                running_server(folder / repository, logs / name, *options, *more)
            )
            for name, (repository, more) in started.items()
        }


def have_the_same_bits(servers: dict[str, RunningServer], version: str, new: int = 0) -> None:
    """Twice each: the second time, states of users are there."""
    with ExitStack() as stack:
        stubs = {name: stack.enter_context(one.stub()) for name, one in servers.items()}
        for seed, batch in enumerate((1, 1, 7, 60)):
            asked = infer_request(request(batch, seed, new), model=MODEL)
            for _ in range(2):
                answers = [stub.ModelInfer(asked, timeout=SECONDS) for stub in stubs.values()]
                assert {one.model_version for one in answers} == {version}
                first, *others = (outputs_of(one)["score"] for one in answers)
                assert len(np.unique(first)) == batch
                for other in others:
                    np.testing.assert_array_equal(other, first)


def all_serve(servers: dict[str, RunningServer], version: int) -> None:
    asked = infer_request(request(1, 0), model=MODEL)
    for name, server in servers.items():
        with server.stub() as stub:
            until(
                lambda stub=stub: stub.ModelInfer(asked).model_version == str(version),
                f"{name} serves version {version}",
            )


def test_ordered_rows_changes_and_what_is_made_whole_of_them_have_the_bits_of_rows_as_trained(
    folder: Path, servers: dict[str, RunningServer]
) -> None:
    base = open_artifact(folder / "ordered" / MODEL / "1").manifest
    assert list(base.row_places or ()) == [*ROWS]
    assert "places of item 640 B" in done("inspect", "-r", folder / "ordered")
    have_the_same_bits(servers, "1")
    for change in (1, 2):
        file = folder / f"changed{change}.safetensors"
        generator = np.random.default_rng(change)
        ids = {name: generator.choice(rows, rows // 9, False) for name, (rows, _) in ROWS.items()}
        new = np.arange(600 + 4 * (change - 1), 600 + 4 * change)
        ids["item"] = np.concatenate([new, ids["item"]])
        write_changes(
            {n: ChangedRows(i, trained_rows(n, len(i), change)) for n, i in ids.items()}, file
        )
        for repository in ("plain", "ordered"):
            done("publish", "-r", folder / repository, "--changed", file)
        all_serve(servers, 1 + change)
        have_the_same_bits(servers, str(1 + change), 4 * change)
    for repository in ("plain", "ordered"):
        done("repo", "compact", folder / repository, MODEL)
        done("verify", "-r", folder / repository)
    all_serve(servers, 4)
    have_the_same_bits(servers, "4", 8)
    assert open_artifact(folder / "ordered" / MODEL / "4").manifest.row_places == base.row_places
