"""The demo of models with a history: ratings in, a served model and its figures out."""

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

import serving.cli
from serving.demo.sequences.ratings import generated_ratings
from serving.remote.triton_inputs import triton_inputs
from tests.end_to_end.test_demo import DemoRun, processes_of, run_demo
from tests.support.waiting import until


def check_figures(done: DemoRun, model: str) -> None:
    fields = done.fields
    assert done.code == 0, done.err
    assert fields["model"] == model
    assert 0.5 < fields["auc_popularity"] < 1 and 0.5 < fields["auc_fp32"] < 1
    assert abs(fields["auc_served"] - fields["auc_fp32"]) <= 0.001
    # A gate of 0.05; int8 rows change scores.
    assert 0 < fields["max_abs_score_diff"] < 0.05
    assert fields["artifact_table_bytes"] < 0.4 * fields["fp32_bytes"]
    ranking = fields["ranking"]
    assert ranking["misses"] == ranking["hits"] == ranking["requests"] > 10
    assert ranking["bits_equal"] and 0 < ranking["max_abs_score_diff"] < 0.05
    for latency in (fields["latency_ms"], ranking["latency_ms"], ranking["hit_latency_ms"]):
        assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
    for figure in (f"{fields['auc_popularity']:.4f}", f"{fields['auc_served']:.4f}"):
        assert figure in done.out
    assert "user cache" in done.out and "equal, to the bit" in done.out


def test_a_log_of_movielens_is_served_until_the_server_is_killed(tmp_path: Path) -> None:
    log = generated_ratings(2000, seed=3)
    columns = zip(log.users, log.items, log.actions, log.times, strict=True)
    ratings = tmp_path / "ratings.dat"
    ratings.write_text("".join(f"{u}::{i}::{max(1, a // 2)}::{t}\n" for u, i, a, t in columns))
    options = ("--model", "sasrec", "--ratings", ratings, "--rows", 1500, "--keep")
    done = run_demo(tmp_path, *options)
    try:
        check_figures(done, "sasrec")
        assert done.fields["training_rows"] + done.fields["scored_rows"] <= 3000
        pid = done.fields["server_pid"]
        assert processes_of(done.repository) == [pid] and f"kill {pid}" in done.out
        request = {
            "item": np.array([1, 2, 3]),
            "history": np.array([[5, 6]]),
            "action": np.array([[9, 7]]),
        }
        with tritonclient.grpc.InferenceServerClient(done.fields["grpc_url"]) as client:
            answer = client.infer("ratings_sasrec", triton_inputs(request))
            scores = answer.as_numpy("score")
        assert scores.shape == (3,) and len(set(scores.tolist())) == 3
    finally:
        for process in processes_of(done.repository):
            os.kill(process, signal.SIGTERM)
        until(lambda: not processes_of(done.repository), "the server has drained")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ratings", "r.csv"), "--ratings is for --model din, sasrec, bst or hstu, got dlrm"),
        (("--model", "bst", "--data", "c.tsv"), "--data is for --model dlrm, got bst"),
        (("--model", "din", "--hosts", "2"), "--hosts is for --model dlrm, got din"),
        (("--model", "hstu", "--raw-ids"), "--raw-ids is for --model dlrm, got hstu"),
    ],
)
def test_an_option_of_another_model_is_refused(
    words: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["sharded-infer", "demo", *words])
    with pytest.raises(SystemExit) as exited:
        serving.cli.main()
    assert exited.value.code == 2 and message in capsys.readouterr().err
