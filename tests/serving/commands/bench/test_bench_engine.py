import json
import os
import warnings
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import serving.commands.bench.engine_dlrm as engine_measurement
from serving.bench.parts.installed_torchrec import torchrec_is_installed
from serving.bench.parts.machine_limit import random_products, timed_products
from serving.bench.turns import one_core
from serving.bench.workloads.dlrm_v2 import IDS_OF_A_BAG, ROWS, dlrm_v2, ids_of, one_user
from serving.bench.workloads.requests import IdDistribution, draw_ids, request_message
from serving.bench.workloads.workload import DENSE
from serving.protocol.readers.input_reader import InputReader
from sharded_infer.specs.precision import Precision
from tests.support.servers import Command, run

SMALL = dlrm_v2(max_rows=50)
needs_torchrec = pytest.mark.skipif(
    not torchrec_is_installed(), reason="TorchRec is not installed: make bench-setup"
)
TINY = ("bench", "engine", "--max-rows", 50, "--pairs", 3, "--rounds", 1, "--seconds", 0.01)


def check_figures(fields: dict[str, Any]) -> None:
    assert (fields["workload"], fields["max_rows"], fields["ids"]) == ("dlrm-v2", 50, "zipf")
    assert fields["pairs"] == 3 and list(fields["towers"]) == ["bf16", "int8"]
    for tower in fields["towers"].values():
        check_run(tower)
    fastest = fields["towers"][fields["precision"]]
    assert fields | fastest == fields
    rates = [tower["pairs_per_second_per_core"] for tower in fields["towers"].values()]
    assert fastest["pairs_per_second_per_core"] == max(rates)
    user = fields["one_user"]
    assert (user["user_features"], user["user_lookups_a_pair"]) == (20, 199)
    assert user["gain"] == pytest.approx(user["expanded_seconds"] / user["shared_seconds"])
    assert 0 < fields["core_share"] < 1.1
    assert fields["kernels"]["lookup"] == {"int8": "native"}
    assert fields["kernels"]["decode"] in {"native", "portable"}


def check_run(fields: dict[str, Any]) -> None:
    stages, whole = fields["stages"], fields["whole_seconds"]
    assert fields["minor_faults_a_request"] >= 0
    assert list(stages) == ["decode", "lookup", "tower", "encode"]
    assert min(stages.values()) > 0
    # Each call's parts are shorter than the call, and so are their medians than its median. Their
    # sum need not be: another process may take the core in another part of each call.
    assert max(stages.values()) <= whole
    assert fields["pairs_per_second_per_core"] == pytest.approx(3 / whole)
    limit = fields["limit"]
    shapes = [(layer["inputs"], layer["outputs"]) for layer in limit["layers"]]
    assert shapes == [
        *((13, 512), (512, 256), (256, 128)),
        *(((3456, 512), (512, 3456)) * 3),
        *((3456, 1024), (1024, 1024), (1024, 512), (512, 256), (256, 1)),
    ]
    matrix_seconds = sum(layer["seconds"] for layer in limit["layers"])
    assert limit["matrix_seconds"] == pytest.approx(matrix_seconds)
    assert limit["seconds"] == pytest.approx(matrix_seconds + limit["gather_seconds"])
    assert limit["gather_4k_seconds"] > 0
    computing = stages["lookup"] + stages["tower"]
    assert fields["limit_fraction"] == pytest.approx(limit["seconds"] / computing)
    assert 0 < fields["whole_limit_fraction"] == pytest.approx(limit["seconds"] / whole)


def test_the_model_has_the_tables_and_the_tower_of_mlperf() -> None:
    spec = dlrm_v2(max_rows=max(ROWS)).spec()
    assert len(spec.tables) == 26 and spec.dense.inputs == {"dense": 13}
    assert sum(table.rows for table in spec.tables) == 204_184_588
    assert sum(IDS_OF_A_BAG) == 214 and len(IDS_OF_A_BAG) == 26
    assert spec.embedding_width + 128 == 3456
    linears = [module for module in SMALL.tower().modules() if isinstance(module, nn.Linear)]
    assert sum(one.in_features * one.out_features for one in linears) == 16_030_464
    with torch.inference_mode():
        score = SMALL.tower()(torch.zeros(2, 13), torch.zeros(2, spec.embedding_width))
    assert score.shape == (2,) and bool(((score > 0) & (score < 1)).all())


def test_large_tables_are_cut_and_small_ones_are_not() -> None:
    assert dlrm_v2(max_rows=1000).rows[:6] == (1000, 1000, 1000, 1000, 1000, 3)
    assert max(dlrm_v2().rows) == 2_000_000


def test_its_messages_are_what_was_drawn() -> None:
    request = SMALL.draw(np.random.default_rng(3), 5)
    reader = InputReader(SMALL.spec(), max_batch=5)
    model_input = reader.read_message(request_message(SMALL.name, request))
    [group] = model_input.groups
    assert np.array_equal(group.lengths, np.repeat([IDS_OF_A_BAG], 5, axis=0).T)
    assert np.array_equal(group.values, np.concatenate([ids.ravel() for ids in ids_of(request)]))
    assert np.array_equal(model_input.dense[0], request[DENSE])


@pytest.mark.parametrize("distribution", list(IdDistribution))
@pytest.mark.parametrize("rows", [1, 3, 100_000])
def test_drawn_ids_are_rows_of_the_table(distribution: IdDistribution, rows: int) -> None:
    ids = draw_ids(np.random.default_rng(0), distribution, rows, 10_000)
    assert ids.dtype == np.int64 and ids.shape == (10_000,)
    assert ids.min() >= 0 and ids.max() < rows


def test_a_core_is_given_back() -> None:
    before = os.sched_getaffinity(0), torch.get_num_threads()
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1 and torch.get_num_threads() == 1
    assert (os.sched_getaffinity(0), torch.get_num_threads()) == before


def test_requests_of_one_user_mean_the_same_said_once_or_for_every_pair() -> None:
    request = SMALL.draw(np.random.default_rng(3), 5)
    reader = InputReader(SMALL.spec(), max_batch=5)
    shared, expanded = (
        reader.read_message(request_message(SMALL.name, one_user(request, expanded=one)))
        for one in (False, True)
    )
    assert [group.batch_size for group in shared.groups] == [5, 1]
    [every] = expanded.groups
    assert every.lengths.shape == (26, 5)
    together = np.concatenate([group.values for group in shared.groups])
    assert set(together.tolist()) == set(every.values.tolist()) and len(together) < len(
        every.values
    )


@pytest.mark.parametrize("precision", list(Precision))
def test_a_products_limit_is_its_faster_implementation(precision: Precision) -> None:
    generator = torch.Generator()
    ways = [random_products(5, *shape, precision, generator) for shape in ((4, 3), (3, 2))]
    seconds = timed_products(ways)
    assert list(seconds) == ["0", "1"] and min(seconds.values()) > 0
    # The last implementation takes less than the others.
    slow = [[partial(sleep, 0.2), partial(sleep, 0.1)]]
    assert 0.1 <= timed_products(slow)["0"] < 0.2


@pytest.mark.parametrize("bench", ["engine", "serve"])
def test_a_benchmark_of_processors_has_no_tf32(sharded_infer: Command, bench: str) -> None:
    done = sharded_infer("bench", bench, "--precision", "tf32")
    assert done.code == 2
    assert "processors compute a tf32 tower in fp32: measure fp32" in done.err


@needs_torchrec
def test_it_measures_the_engine_beside_torchrec_and_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    done = run(*TINY, "--json", file)
    assert done.returncode == 0, done.stderr
    assert "TorchRec, bf16" in done.stdout and "tables cut to 50 rows" in done.stdout
    fields = json.loads(file.read_text())
    check_figures(fields)
    assert fields["torchrec_default_pairs_per_second"] > 0
    assert fields["torchrec_bf16_pairs_per_second"] > 0
    assert fields["torchrec_refusal"] is None


def test_without_torchrec_it_says_why_there_is_no_peer(
    sharded_infer: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine_measurement, "torchrec_is_installed", lambda: False)
    file = tmp_path / "engine.json"
    done = sharded_infer(*TINY, "--json", file)
    assert done.code == 0, done.err
    assert "TorchRec is not installed: pip install" in done.out
    fields = json.loads(file.read_text())
    check_figures(fields)
    assert fields["torchrec_default_pairs_per_second"] is None
    assert fields["torchrec_bf16_pairs_per_second"] is None
    assert "pip install" in fields["torchrec_refusal"]


@needs_torchrec
def test_torchrecs_model_pools_its_rows_and_scores_alike_in_both_precisions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from serving.bench.parts.torchrec_dlrm import build_torchrec_models, jagged

        default, lowered = build_torchrec_models(SMALL)
        request = SMALL.draw(np.random.default_rng(1), 7)
        with torch.inference_mode():
            pooled = default.pooled(jagged(request))
            dense = torch.from_numpy(request[DENSE])
            scores = [one.scores(dense, jagged(request)) for one in (default, lowered)]
    assert pooled.shape == (7, 26, 128)
    # Rows are uniform in (-1/128, 1/128): so are their sums, of as many as a bag has ids.
    for feature, ids in enumerate(IDS_OF_A_BAG):
        assert 0 < float(pooled[:, feature].abs().max()) <= 1.01 * ids / 128
    assert len(scores[0].unique()) == 7
    assert torch.allclose(scores[0], scores[1], atol=0.01)


def test_on_devices_it_measures_offline_and_server(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    words = ("--device", "simulated", "--topology", "h100:2", "--gpus", "0,0", "--max-rows", 50)
    more = ("--precision", "tf32", "--pairs", 2, "--seconds", 0.1, "--json", file)
    done = run("bench", "engine", *words, *more)
    assert done.returncode == 0, done.stderr
    assert "offline" in done.stdout and "cuda:0: " in done.stdout
    fields = json.loads(file.read_text())
    tower = fields["towers"]["tf32"]
    assert list(tower["offline_pairs_per_second"]) == ["2", "4", "8", "16"]
    assert all(rate > 0 for rate in tower["offline_pairs_per_second"].values())
    assert len(tower["server"]) == 5 and tower["golden_diff"] < 0.05
    offered = [2 * one["offered_per_second"] for one in tower["server"]]
    met = tower["server_pairs_per_second_within_60_ms"]
    assert met == 0 or met == pytest.approx(
        max(
            rate
            for rate, one in zip(offered, tower["server"], strict=True)
            if one["latency_ms"]["p99"] <= 60
        )
    )


def test_without_a_gpu_the_engine_on_gpus_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("bench", "engine", "--device", "cuda", "--max-rows", 50)
    assert done.returncode == 1 and "no CUDA device was found" in done.stderr


@pytest.mark.parametrize("workload", ["din", "sasrec", "hstu-small"])
def test_the_figures_of_sequences_are_written_for_each_precision(
    workload: str, tmp_path: Path
) -> None:
    target = tmp_path / "figures.json"
    sizes = ("--max-rows", 50, "--history", 9, "--candidates", 3, "--rounds", 1, "--seconds", 0.01)
    words = ("--workload", workload, *sizes, "--precision", "fp32", "--precision", "bf16")
    ran = run("bench", "engine", *words, "--json", target)
    assert ran.returncode == 0, ran.stderr
    assert "history with every candidate, bf16" in ran.stdout
    fields = json.loads(target.read_text())
    assert (fields["workload"], fields["history"], fields["candidates"]) == (workload, 9, 3)
    assert list(fields["towers"]) == ["fp32", "bf16"]
    for tower in fields["towers"].values():
        assert tower["over_per_candidate"] == tower["each_seconds"] / tower["once_seconds"]
        parts = tower["product_seconds"] + tower["copy_seconds"]
        assert tower["limit_fraction"] == parts / tower["once_seconds"]
        assert min(tower.values()) > 0
    assert fields | fields["towers"][fields["precision"]] == fields
