"""Requests that servers record, and what they are used for."""

import json
import signal
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sharded_infer import publish
from sharded_infer.client import Client
from sharded_infer.errors import InputError
from sharded_infer.samples.file import read_samples
from sharded_infer.samples.record import RecordedRequest, record_files, recorded_requests
from tests.support.servers import Ranker as Served
from tests.support.servers import RunningServer, good_inputs, run, running_server
from tests.support.traffic import client_of, triton_inputs

pytestmark = pytest.mark.rest
pytest.importorskip("pyarrow")
MODEL, LENGTH, ITEMS = "recorded", 4, 60
EVERY = ("--record-share", 1)


class Ranker(nn.Module):
    """Ids through steps, a history that candidates share, and numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.rows, self.layer = nn.Embedding(100 + ITEMS, 8), nn.Linear(10, 1)

    def forward(self, user: Tensor, history: Tensor, item: Tensor, price: Tensor) -> Tensor:
        seen = self.rows(history + 100) * (history != 0).unsqueeze(2)
        both = self.rows(user) * self.rows(item + 100) + seen.mean(1)
        return torch.sigmoid(self.layer(torch.cat([both, price], 1))).squeeze(1)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "models"
    example = {
        "user": torch.randint(0, 100, (32,)),
        "history": torch.randint(0, ITEMS, (32, LENGTH)),
        "item": torch.randint(0, ITEMS, (32,)),
        "price": torch.rand(32, 2),
    }
    publish(Ranker().eval(), example, folder, name=MODEL, user=["user", "history"])
    return folder


def ask(server: RunningServer, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of one to five candidates, every other over HTTP; what was sent and came."""
    rng, asked = np.random.default_rng(seed), []
    with Client(server.grpc_url) as client:
        for number in range(count):
            samples = 1 + number % 5
            user = {"user": rng.integers(100), "history": rng.integers(0, ITEMS, LENGTH)}
            own = {
                "item": rng.integers(0, ITEMS, samples),
                "price": rng.random((samples, 2), np.float32),
            }
            sent = {"id": f"request {number}", **user, **own}
            if number % 2:
                sent["score"] = over_http(server, sent)
            else:
                answer = client.predict(MODEL, user=user, candidates=own, request_id=sent["id"])
                sent["score"] = answer.scores["score"]
            asked.append(sent)
    return asked


def over_http(server: RunningServer, sent: dict[str, Any]) -> np.ndarray[Any, Any]:
    shapes = {"user": [1], "history": [1, LENGTH], "item": [-1], "price": [-1, 2]}
    tensors = []
    for name, shape in shapes.items():
        array = np.asarray(sent[name]).reshape(shape)
        kind = "FP32" if name == "price" else "INT64"
        tensors.append(
            {"name": name, "shape": array.shape, "datatype": kind, "data": array.ravel().tolist()}
        )
    body = json.dumps({"id": sent["id"], "inputs": tensors}).encode()
    url = f"{server.metrics_url.removesuffix('/metrics')}/v2/models/{MODEL}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:  # noqa: S310
        [output] = json.load(answer)["outputs"]
    return np.array(output["data"], np.float32)


def recorded(folder: Path) -> dict[str, RecordedRequest]:
    return {
        request.request_id: request for request in recorded_requests(record_files(folder, MODEL))
    }


def test_requests_are_recorded_as_sent_and_score_the_same_bits_again(
    repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "record"
    with running_server(repository, tmp_path / "log", "--record", folder, *EVERY) as server:
        asked = ask(server, 30)
    assert folder.stat().st_mode & 0o777 == 0o700
    found = recorded(folder)
    assert len(found) == len(asked)
    for sent in asked:
        one = found[sent["id"]]
        assert (one.status, one.samples, one.version) == ("OK", len(sent["item"]), 1)
        for name in ("user", "history", "item", "price"):
            kept = one.inputs[name]
            np.testing.assert_array_equal(kept.ravel(), np.ravel(sent[name]))
        # What candidates share lies there once.
        assert one.inputs["history.lengths"].tolist() == [LENGTH]
        assert one.inputs["item.lengths"].tolist() == [1] * one.samples
        np.testing.assert_array_equal(one.scores["score"], sent["score"])
        assert 0 < one.seconds["tower"] < 60 and abs(one.seconds["time"] - time.time()) < 600
    done = run("record", "compare", folder, "-r", repository, "--json")
    samples = sum(len(sent["item"]) for sent in asked)
    figures = {"requests": 30, "samples": samples, "largest": 0.0, "mean": 0.0}
    figures |= {"share_beyond": 0.0, "refused": 0, "refusal": ""}
    assert (done.returncode, json.loads(done.stdout)) == (0, {"1": figures})
    with running_server(repository, tmp_path / "log") as server:
        done = run("record", "compare", folder, "-a", server.grpc_url, "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"1": figures})
    shown = json.loads(run("record", "show", folder, "--json").stdout)["1"]
    assert (shown["requests"], shown["failed"], shown["ids"]["history"]["mean"]) == (30, 0, 4)
    columns = read_samples(folder, model=MODEL).values
    assert {name: len(cells) for name, cells in columns.items()} == dict.fromkeys(
        ("user", "history", "item", "price"), samples
    )
    done = run("predict", folder, "-r", repository, "--json")
    scores = np.array(json.loads(done.stdout)["scores"]["score"], np.float32)
    # Here all samples are one request.
    expected = np.sort(np.concatenate([sent["score"] for sent in asked]))
    np.testing.assert_allclose(np.sort(scores), expected, atol=1e-6)
    done = run("record", "prune", folder, "--older-than", "1d", "--json")
    assert json.loads(done.stdout)["files"] == 0


def test_weights_are_recorded_beside_requests_without(ranker: Served, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    with (
        running_server(ranker.repository, tmp_path / "log", "--record", folder, *EVERY) as server,
        client_of(server) as client,
    ):
        for number in range(8):
            inputs = good_inputs(1 + number % 3, number)
            if number % 2:
                del inputs["category.weights"]
            client.infer(ranker.model.name, triton_inputs(inputs), request_id=str(number))
    found = {
        request.request_id: request.inputs for request in recorded_requests(record_files(folder))
    }
    # Those without may have ones.
    weighted = {
        n for n, one in found.items() if (one.get("category.weights", np.ones(1)) != 1).any()
    }
    assert len(found) == 8 and weighted == {"0", "2", "4", "6"}
    done = run("record", "compare", folder, "-r", ranker.repository, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["1"]["largest"] == 0.0
    weights = read_samples(folder).values["category.weights"]
    assert len(weights) == sum(1 + number % 3 for number in range(8))


def test_a_share_of_users_is_recorded_without_their_ids(repository: Path, tmp_path: Path) -> None:
    folder, key = tmp_path / "record", tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    options = ("--record", folder, "--record-share", 0.5, "--record-without", "nothing")
    # Numbers, of which a hash tells nothing, are left out.
    hashing = ("--record-hash", "user", "--record-hash", "price", "--record-hash-key", key)
    inputs = {"history": np.arange(LENGTH), "user": 7}
    own = {"item": np.arange(3), "price": np.ones((3, 2), np.float32)}
    with (
        running_server(repository, tmp_path / "log", *options, *hashing) as server,
        Client(server.grpc_url) as client,
    ):
        for user in range(40):
            for turn in range(3):
                name = f"{user} {turn}"
                keyed = {"routing_key": f"user {user}", "request_id": name}
                client.predict(MODEL, user=inputs, candidates=own, **keyed)
    found = recorded(folder)
    users = {name.partition(" ")[0] for name in found}
    # All requests of a user, or none.
    assert len(found) == 3 * len(users) and 8 < len(users) < 32
    names = {"user", "history", "item"}
    assert {frozenset(request.inputs) for request in found.values()} == {
        frozenset(names | {f"{name}.lengths" for name in names})
    }
    log = (tmp_path / "log").read_text()
    assert "record_without: recorded version 1 has no input nothing" in log
    assert "record_hash: recorded version 1 has no sparse input price" in log
    [hashed] = {int(request.inputs["user"][0]) for request in found.values()}
    assert hashed not in range(100)


def test_files_are_whole_wherever_a_server_is_killed(repository: Path, tmp_path: Path) -> None:
    folder = tmp_path / "record"
    for turn in range(4):
        with running_server(
            repository, tmp_path / "log", "--record", folder, *EVERY, exit_code=None
        ) as server:
            done = threading.Event()

            def go_on(server: RunningServer = server, done: threading.Event = done) -> None:
                try:
                    while not done.is_set():
                        ask(server, 20)
                except Exception:
                    return

            thread = threading.Thread(target=go_on)
            thread.start()
            time.sleep(0.4 + 0.3 * turn)
            server.process.send_signal(signal.SIGKILL if turn % 2 else signal.SIGTERM)
            server.process.wait(60)
            done.set()
            thread.join(60)
    for request in recorded_requests(record_files(folder)):
        assert request.status == "OK" and len(request.scores["score"]) == request.samples


def test_a_folder_that_cannot_be_written_costs_recording_alone(
    repository: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "record"
    folder.mkdir()
    (folder / f"model={MODEL}").write_text("no folder")
    log = tmp_path / "log"
    with running_server(repository, log, "--record", folder, *EVERY) as server:
        assert len(ask(server, 6)) == 6
    assert "recording: 6 requests lost: model=recorded/version=1/hour=" in log.read_text()
    with pytest.raises(InputError, match="no recorded requests"):
        record_files(folder)


def test_what_a_recording_needs_is_said_before_anything_is_served(
    repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"short")
    for options, words in (
        (("--record-hash", "user"), "record_hash and record_hash_key: expected both or neither"),
        (
            ("--record-hash", "user", "--record-hash-key", tmp_path / "key"),
            "expected 16 to 64 bytes, got 5",
        ),
    ):
        done = run("serve", "-r", repository, "--record", tmp_path / "record", *options)
        assert done.returncode == 1 and words in done.stderr
