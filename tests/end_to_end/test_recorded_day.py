"""One recording, and everything that it is used for."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from typing import Any

import numpy as np
import pytest
import torch

from sharded_infer import Precision, Repository, export_tower, write_program
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import load_golden
from sharded_infer.repositories.promotion.record import Promotion
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.record import record_files, recorded_requests
from sharded_infer.specs.release_spec import ReleaseSpec
from tests.end_to_end.test_all_features import SPEC, Trained, message, publish_planned
from tests.support.fronts import SECONDS, running_front, running_hosts
from tests.support.s3_server import BUCKET, S3Server
from tests.support.servers import (
    MODEL,
    Ranker,
    RunningServer,
    good_inputs,
    infer_request,
    publish_ranker,
    ranker_spec,
    run,
    running_server,
)

pytestmark = pytest.mark.rest
parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")
EVERY = ("--record-share", 1)
# Not of times, which depend on what else the machine does.
BOUNDS = ReleaseSpec(max_score_shift=0.5, max_error_rate=0.02, max_unknown_ids=0.3)
REQUESTS, UNKNOWN = 160, 9


@dataclass(frozen=True)
class Day:
    repository: Path
    ranker: Ranker
    folder: Path
    sizes: list[int]

    @property
    def samples(self) -> int:
        return sum(self.sizes)


def send(server: RunningServer, sizes: list[int], seed: int = 0) -> None:
    """Requests of some sizes; of each `UNKNOWN`th, an item is in no table."""
    with server.stub() as stub:
        for number, size in enumerate(sizes):
            inputs = good_inputs(size, seed + number)
            if number % UNKNOWN == 0:
                inputs["item"][:1] = 10**6
            stub.ModelInfer(infer_request(inputs, request_id=f"r{number}"), timeout=SECONDS)


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    home = tmp_path_factory.mktemp("day")
    ranker = publish_ranker(home / "models", topology="cpu:1", release=BOUNDS)
    sizes = np.random.default_rng(0).zipf(1.6, REQUESTS).clip(1, 40).tolist()
    recording = ("--record", home / "record", *EVERY)
    with running_server(home / "models", home / "log", *recording) as server:
        send(server, sizes)
    return Day(home / "models", ranker, home / "record", sizes)


def test_versions_take_golden_requests_calibration_and_row_orders_from_a_recording(
    day: Day, tmp_path: Path
) -> None:
    spec = ranker_spec()
    program = export_tower(
        day.ranker.tower,
        dense=spec.dense.inputs,
        embedding_width=spec.embedding_width,
        outputs=spec.tower.outputs,
        precision=Precision.FP32,
    )
    write_program(program, tmp_path / "tower.pt2")
    torch.save({n: bag.weight for n, bag in day.ranker.tables.items()}, tmp_path / "weights.pt")
    described = replace(spec, tower=replace(spec.tower, program="tower.pt2"))
    (tmp_path / "model.toml").write_text(described.to_toml())
    named = ("--spec", tmp_path / "model.toml", "--weights", tmp_path / "weights.pt")
    uses = ("--samples", day.folder, "--order-rows", "frequency", "--calibration", day.folder)
    golden = ("--golden", day.folder, "--golden-rows", 32)
    done = run("publish", *named, "-r", tmp_path / "models", *uses, *golden, "--json")
    assert done.returncode == 0, done.stderr
    artifact = open_artifact(Path(json.loads(done.stdout)["path"]))
    manifest = artifact.manifest
    assert set(manifest.row_places) >= {"user", "item"}
    kept = load_golden(artifact.path / manifest.golden.file, manifest.model_spec())
    assert kept.model_input.batch_size == 32
    done = run("inspect", "-r", tmp_path / "models", "--report", "--json")
    assert json.loads(done.stdout)["calibration"]["samples"] == day.samples
    refused = run("publish", *named, "-r", tmp_path / "models", "--golden-rows", 3)
    assert "--golden-rows: expected --golden" in refused.stderr


def test_chosen_samples_are_of_small_and_large_requests_and_of_unknown_ids(day: Day) -> None:
    spec = ranker_spec()
    columns = read_samples(day.folder, strings=spec.string_inputs, rows=24).values
    assert len(columns["user"]) == 24
    request_of = {
        tuple(row): request
        for request in recorded_requests(record_files(day.folder))
        for row in request.inputs["dense"]
    }
    requests = [request_of[tuple(np.float32(row))] for row in columns["dense"]]
    # By chance alone it were some three of 24.
    assert 8 <= sum(request.ids_outside > 0 for request in requests) <= 12
    kinds = {size.bit_length() for size in day.sizes}
    assert {request.samples.bit_length() for request in requests} == kinds


def test_samples_of_a_recording_are_scored_by_every_command(day: Day) -> None:
    done = run("record", "sample", day.folder, "-n", 7)
    assert len(done.stdout.splitlines()) == 7
    scored = run("predict", "-", "-r", day.repository, "--json", stdin=done.stdout)
    assert scored.returncode == 0, scored.stderr
    assert len(json.loads(scored.stdout)["scores"]["score"]) == 7
    other = run("record", "sample", day.folder, "-n", 7, "--seed", 1)
    assert other.stdout != done.stdout == run("record", "sample", day.folder, "-n", 7).stdout


def test_a_recording_is_sent_again_at_its_pace(day: Day, tmp_path: Path) -> None:
    with running_server(day.repository, tmp_path / "log") as server:
        named = ("bench", "serve", "--replay", day.folder, "--address", server.grpc_url)
        found = {}
        for speed in (1, 4):
            done = run(*named, "--speed", speed, "--duration", 60, "--json", "-")
            assert done.returncode == 0, done.stderr
            found[speed] = json.loads(done.stdout.splitlines()[-1])
        done = run(*named, "--concurrency", 2)
        assert "--replay: recorded times: expected --address" in done.stderr
    assert not found[1]["errors"] and not found[4]["errors"]
    ratio = found[4]["offered_per_second"] / found[1]["offered_per_second"]
    assert ratio == pytest.approx(4, rel=1e-3)


def test_a_version_scores_recorded_requests_before_it_is_ready(day: Day, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(day.repository, log, "--warm-from", day.folder):
        pass
    assert f"warmed with {REQUESTS} recorded requests" in log.read_text()
    # A recording that is not there costs its uses alone.
    with running_server(day.repository, log, "--warm-from", tmp_path / "none") as server:
        send(server, [1])
    assert "warmed with 0 recorded requests: " in log.read_text()


def test_labels_move_where_recorded_requests_break_no_bound(day: Day, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    for shift in (0.0, 3.0, 0.001):
        publish_ranker(
            repository,
            topology="cpu:1",
            release=BOUNDS,
            change=lambda tower, shift=shift: tower.score.bias.add_(shift),
        )
    run("repo", "label", repository, MODEL, "stable", 1)
    run("repo", "label", repository, MODEL, "canary", 2)
    promote = ("repo", "promote", repository, MODEL, "--record", day.folder)
    done = run(*promote)
    assert done.returncode == 1
    assert "stable stays at its version: the mean of score is shifted" in done.stderr
    begun = Promotion("canary", "stable", 2, 1, (50,), 0, time(), 60.0, "another", time() + 60)
    Repository(repository).change_labels(MODEL, lambda labels: labels.promoting(begun))
    assert "canary is promoted by another" in run(*promote).stderr
    run("repo", "label", repository, MODEL, "canary", 3)
    done = run(*promote, "--json")
    assert json.loads(done.stdout) == {"model": MODEL, "promoted": 3, "requests": REQUESTS}
    assert Repository(repository).labels(MODEL) == {"canary": 3, "stable": 3}
    refused = run(*promote, "--server", "http://localhost:1")
    assert "--record: expected neither --server nor --resume" in refused.stderr
    compared = run("record", "compare", day.folder, "-r", repository, "--version", 2)
    assert compared.returncode == 1 and "scores differ by at most 0." in compared.stdout


def test_a_recording_is_shown_with_labels_and_as_a_page(day: Day, tmp_path: Path) -> None:
    ids, candidates, labels = [], [], []
    expected: list[Any] = []
    for request in recorded_requests(record_files(day.folder)):
        for place, score in enumerate(request.scores["score"].tolist()):
            ids.append(request.request_id)
            candidates.append(place)
            labels.append(score > 0.5)
            expected.append(score)
    # Labels that a perfect score has, but for some that are missing.
    table = arrow.table(
        {"request_id": ids, "candidate": candidates, "label": np.array(labels, int)}
    )
    parquet.write_table(table.slice(5), tmp_path / "labels.parquet")
    page = tmp_path / "page.html"
    named = ("record", "show", day.folder, "--labels", tmp_path / "labels.parquet")
    done = run(*named, "--html", page, "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)["1"]
    assert (shown["requests"], shown["samples"]) == (REQUESTS, day.samples)
    assert shown["ids_outside"] == -(-REQUESTS // UNKNOWN)
    assert shown["sizes"]["most"] == max(day.sizes)
    assert shown["scores"]["score"]["spread"]["most"] == max(expected)
    assert shown["scores"]["score"]["auc"] == 1.0 and shown["labelled"] == day.samples - 5
    # Three numbers a sample, of which none has a label of its own.
    assert shown["scores"]["labels"]["auc"] is None
    assert "AUC <b>1.00000</b>" in page.read_text() and "Version 1" in page.read_text()
    text = run(*named).stdout
    assert f"version 1: {REQUESTS} requests, 0 failed" in text and "; AUC 1.00000 of" in text
    words = "wrong.parquet: expected labels and candidates as numbers"
    for text in ("x", None):
        wrong = table.set_column(1, "candidate", arrow.array([text] * len(table)))
        parquet.write_table(wrong, tmp_path / "wrong.parquet")
        refused = run("record", "show", day.folder, "--labels", tmp_path / "wrong.parquet")
        assert words in refused.stderr
    refused = run(*named, "--on", "request,candidate")
    assert "expected request, got columns request_id, candidate, label" in refused.stderr


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("in.user.lengths", lambda column: arrow.compute.list_slice(column, 0, 0)),
        ("samples", lambda column: arrow.nulls(len(column))),
        ("time", lambda column: arrow.array(["now"] * len(column))),
        ("out.score", lambda column: arrow.array([0.5] * len(column))),
        ("has_defaults", None),
    ],
)  # fmt: skip
def test_a_file_that_is_no_recording_is_named(
    day: Day, tmp_path: Path, column: str, wrong: Any
) -> None:
    path = record_files(day.folder)[0].path
    table = parquet.read_table(path, partitioning=None)
    place = table.column_names.index(column)
    if wrong is None:
        table = table.remove_column(place)
    else:
        table = table.set_column(place, column, wrong(table.column(place).combine_chunks()))
    folder = tmp_path / f"model={MODEL}" / "version=1" / "hour=2026-11-29T22"
    folder.mkdir(parents=True)
    parquet.write_table(table, folder / "a.parquet")
    for words in (("show",), ("sample",), ("compare", "-r", day.repository)):
        done = run("record", words[0], tmp_path, *words[1:])
        assert done.returncode == 1 and f"{folder}/a.parquet: expected recorded" in done.stderr
    done = run("bench", "serve", "--replay", tmp_path, "--address", "localhost:9")
    assert f"{folder}/a.parquet: expected recorded" in done.stderr
    log = tmp_path / "log"
    with running_server(day.repository, log, "--warm-from", tmp_path) as server:
        send(server, [1])
    assert "warmed with 0 recorded requests: " in log.read_text()


def test_a_recording_in_a_bucket_is_read(
    day: Day, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    record = f"s3://{BUCKET}/traffic"
    with running_server(day.repository, tmp_path / "log", "--record", record, *EVERY) as server:
        send(server, [3, 1, 5])
    done = run("record", "show", record, "--json")
    assert (done.returncode, json.loads(done.stdout)["1"]["samples"]) == (0, 9), done.stderr
    done = run("record", "compare", record, "-r", day.repository, "--json")
    assert json.loads(done.stdout)["1"]["largest"] == 0.0
    with running_server(day.repository, tmp_path / "log", "--warm-from", record):
        pass
    assert "warmed with 3 recorded requests" in (tmp_path / "log").read_text()
    done = run("record", "prune", record, "--older-than", "1d")
    assert "expected a folder; objects expire by rules of their bucket" in done.stderr


def test_recorded_requests_of_shard_hosts_score_the_same_bits_anywhere(tmp_path: Path) -> None:
    """Raw ids, strings, weights and sequences, whose rows lie on two hosts."""
    trained, home = Trained(), (tmp_path / "models", tmp_path)
    publish_planned(SPEC, trained, tmp_path / "models")
    record = tmp_path / "record"
    with running_hosts(*home, (0, 1)) as hosts:
        with (
            running_front(*home, hosts, "--record", record, *EVERY) as front,
            front.stub() as stub,
        ):
            for number in range(40):
                inputs = trained.inputs(1 + number % 9, weighted=number % 3 == 0)
                request = message(inputs, strings=number % 2 == 0)
                stub.ModelInfer(request, timeout=SECONDS)
        with running_front(*home, hosts) as front:
            places: list[tuple[object, ...]] = [("-r", tmp_path / "models")]
            places.append(("-a", front.grpc_url))
            for place in places:
                done = run("record", "compare", record, *place, "--json")
                assert done.returncode == 0, done.stderr
                found = json.loads(done.stdout)["1"]
                assert (found["requests"], found["largest"], found["refused"]) == (40, 0.0, 0)
    unknown = sum(request.ids_outside for request in recorded_requests(record_files(record)))
    assert unknown > 0


def test_answers_with_default_rows_are_not_compared(tmp_path: Path) -> None:
    trained, home = Trained(), (tmp_path / "models", tmp_path)
    publish_planned(SPEC, trained, tmp_path / "models")
    record = tmp_path / "record"
    with (
        running_hosts(*home, (0,)) as hosts,
        running_hosts(*home, (1,), exit_code=None) as lost,
        running_front(*home, {**hosts, **lost}, "--record", record, *EVERY) as front,
        front.stub() as stub,
    ):
        stub.ModelInfer(message(trained.inputs(3)), timeout=SECONDS)
        lost[1].process.kill()
        lost[1].process.wait()
        stub.ModelInfer(message(trained.inputs(3)), timeout=SECONDS)
    found = sorted(r.has_defaults for r in recorded_requests(record_files(record)))
    assert found == [False, True]
    done = run("record", "compare", record, "-r", tmp_path / "models", "--json")
    assert json.loads(done.stdout)["1"]["requests"] == 1
