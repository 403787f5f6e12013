import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from serving.commands.doctor import Verdict, examine
from sharded_infer import Precision, export_tower, record_reference, write_program
from sharded_infer.repositories.repository import Repository
from sharded_infer.zoo.dlrm import DLRM
from tests.support.large_folios import has_large_folios
from tests.support.servers import MODEL, Command, Ranker, RunningServer, run

SPEC = """
name = "clicks"

[[tables]]
name = "C1"
rows = 30
dim = 8
features = ["C1", "C1_history"]

[[tables]]
name = "C2"
rows = 12
dim = 8
pooling = "mean"
format = "bf16"
weights = "odd.name"

[dense]
inputs = { dense = 4 }

[tower]
architecture = "dlrm"
bottom = [16, 8]
top = [16, 1]

[gate]
max_score_diff = 0.01
"""


def trained_tower() -> DLRM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return DLRM(dense_width=4, feature_dims=[8, 8, 8], bottom=[16, 8], top=[16, 1])


def trained() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    tower = trained_tower().state_dict()
    weights = {f"tower.{name}": parameter for name, parameter in tower.items()}
    weights["model.embedding_bags.C1.weight"] = torch.randn(30, 8, generator=generator)
    weights["odd.name"] = torch.randn(12, 8, generator=generator)
    return weights


@dataclass(frozen=True, slots=True)
class Files:
    folder: Path
    spec: Path
    weights: Path

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def publish(self, *more: object) -> tuple[object, ...]:
        words = ("publish", "--spec", self.spec, "--weights", self.weights)
        return (*words, "-r", self.repository, *more)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    made = Files(tmp_path, tmp_path / "model.toml", tmp_path / "model.safetensors")
    made.spec.write_text(SPEC)
    save_file(trained(), made.weights)
    return made


def test_publish_says_what_it_made(files: Files, sharded_infer: Command) -> None:
    words = files.publish("--topology", "cpu:2", "--topology", "cpu:1x1MB")
    fields = sharded_infer(*words, "--json").json()
    path = files.repository / "clicks" / "1"
    assert (fields["model"], fields["version"], Path(fields["path"])) == ("clicks", 1, path)
    assert fields["fp32_bytes"] == 4 * 8 * (30 + 12)
    assert fields["table_bytes"] == sum(p.stat().st_size for p in path.glob("tables/*.safetensors"))
    assert 0 < fields["max_score_diff"] <= 0.01
    told = sharded_infer(*words)
    assert told.code == 0
    assert "published clicks version 2" in told.out
    assert str(files.repository / "clicks" / "2") in told.out
    fields = sharded_infer("verify", "-r", files.repository, "--json").json()
    assert (fields["version"], fields["plans"]) == (2, ["cpu:2", "cpu:1x1MB"])


def test_an_import_that_was_not_compared_is_said_not_to_be(
    files: Files, sharded_infer: Command
) -> None:
    said = "import not compared with the trained model: "
    assert said in sharded_infer(*files.publish()).out
    where = ("-r", files.repository)
    for words in (
        ("inspect", *where),
        ("inspect", "--report", *where),
        ("repo", "show", files.repository, "clicks", "1"),
    ):
        shown = sharded_infer(*words)
        assert shown.code == 0 and said in shown.out.replace("\n", " ")


def test_recorded_scores_of_the_trained_model_decide_what_is_published(
    files: Files, sharded_infer: Command
) -> None:
    weights, tower = trained(), trained_tower()
    c1, c2 = weights["model.embedding_bags.C1.weight"], weights["odd.name"]

    def model(dense: Tensor, C1: Tensor, C1_history: Tensor, C2: Tensor) -> Tensor:  # noqa: N803
        pooled = [c1[C1], c1[C1_history].sum(1), c2[C2].mean(1)]
        return tower(dense, torch.cat(pooled, 1))

    samples = {
        "dense": [[0.5, -1.0, 0.0, 2.0], [1.0, 2.0, 3.0, 4.0]],
        "C1": [7, 3],
        "C1_history": [[1, 2], [4, 4]],
        "C2": [[3, 4, 5], [1, 0, 0]],
    }
    recorded = record_reference(model, samples)
    rows = [dict(zip(recorded, row, strict=True)) for row in zip(*recorded.values(), strict=True)]
    path = files.folder / "clicks.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    told = sharded_infer(*files.publish("--calibration", path))
    assert told.code == 0
    assert "import compared with the trained model's recorded scores on 2 samples" in told.out
    shown = sharded_infer("inspect", "-r", files.repository).out
    assert "import compared with the trained model's recorded scores" in shown


def test_commands_are_processes_that_read_stdin_and_end_with_their_exit_code(
    ranker: Ranker,
) -> None:
    where = ("predict", "-", "-r", ranker.repository, "--json")
    scored = run(*where, stdin=json.dumps(SAMPLES), forked=False)
    assert scored.returncode == 0 and scored.stderr == ""
    expected = expected_scores(ranker)["score"]
    assert np.array_equal(np.array(json.loads(scored.stdout)["scores"]["score"], "f4"), expected)
    refused = run(*where, stdin="seven", forked=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: line 1: not JSON")


def test_an_exported_program_is_the_tower_its_path_beside_the_description(
    files: Files, sharded_infer: Command
) -> None:
    assert sharded_infer(*files.publish()).code == 0
    start, end = SPEC.index("architecture"), SPEC.index("[gate]")
    tower = 'program = "towers/dlrm.pt2"\noutputs = ["score"]\n\n'
    files.spec.write_text(SPEC[:start] + tower + SPEC[end:])
    (files.folder / "towers").mkdir()
    program = export_tower(
        trained_tower(),
        dense={"dense": 4},
        embedding_width=24,
        outputs=("score",),
        precision=Precision.FP32,
    )
    write_program(program, files.folder / "towers" / "dlrm.pt2")
    assert sharded_infer(*files.publish()).code == 0
    scores = []
    for version in (1, 2):
        words = ("predict", "-", "-r", files.repository, "--json", "--version", version)
        done = sharded_infer(*words, stdin='{"dense": [1, 2, 3, 4], "C1": 7}')
        scores += done.json()["scores"]["score"]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


def test_inspect_says_what_a_version_holds(ranker: Ranker, sharded_infer: Command) -> None:
    fields = sharded_infer("inspect", "-r", ranker.repository, "--json").json()
    assert (fields["model"], fields["version"]) == (MODEL, 1)
    assert [table["name"] for table in fields["tables"]] == ["user", "item", "category", "brand"]
    assert list(fields["plans"]) == ["cpu:2"]
    assert fields["tower"]["outputs"] == [
        {"name": "score", "width": None},
        {"name": "labels", "width": 3},
    ]
    done = sharded_infer("inspect", "-r", ranker.repository, "-m", MODEL, "--version", 1)
    assert done.code == 0
    for word in ("ranker version 1", "user", "97", "int8", "bf16", "cpu:2", "score, labels"):
        assert word in done.out


def test_verify_says_what_it_read_and_scored(ranker: Ranker, sharded_infer: Command) -> None:
    fields = sharded_infer("verify", "-r", ranker.repository, "--json").json()
    folder = ranker.repository / MODEL / "1"
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"]
    assert (fields["model"], fields["version"]) == (MODEL, 1)
    assert fields["files"] == len(found)
    assert fields["bytes"] == sum(p.stat().st_size for p in found)
    assert 0 < fields["max_score_diff"] <= 0.05 and fields["plans"] == ["cpu:2"]


def test_a_model_must_be_named_among_several(
    files: Files, ranker: Ranker, sharded_infer: Command
) -> None:
    assert sharded_infer(*files.publish()).code == 0
    shutil.copytree(ranker.repository / MODEL, files.repository / MODEL)
    sharded_infer("inspect", "-r", files.repository).refused("--model", f"clicks, {MODEL}")
    assert sharded_infer("inspect", "-r", files.repository, "-m", "clicks").code == 0


def test_publish_refuses_in_one_line_and_leaves_no_version(
    files: Files, sharded_infer: Command
) -> None:
    # C1's 30 rows take 12 bytes each (int8, 4 of scale and bias), C2's 12 rows 16 (bf16).
    small = ("--topology", "cpu:2", "--topology", "cpu:1x0.5KB")
    misfit = ("'C2' 192 B", "cpu:1x0.5KB", "52 bytes too many", "add 1 rank of")
    sharded_infer(*files.publish(*small)).refused(*misfit)
    files.spec.write_text(SPEC.replace("max_score_diff = 0.01", "max_score_diff = 0.0000001"))
    sharded_infer(*files.publish()).refused("'clicks'", "allows 1e-07")
    weights = trained()
    del weights["tower.top.layers.0.weight"]
    save_file(weights, files.weights)
    missing = "holds no 'tower.top.layers.0.weight'"
    sharded_infer(*files.publish()).refused("tower", missing)
    left = sorted(files.repository.rglob("*")) if files.repository.exists() else []
    assert [path for path in left if path != files.repository / "clicks"] == []


SAMPLES = [
    {"dense": [0.5, 1.0, -2.25, 0.0], "user": 7, "item": [3], "history": [1, 2, 3], "brand": [4]},
    {"dense": [0, 0, 0, 1], "item": [5, 96, 200], "category": [20, -1]},
    {"dense": [1e-3, 2.5, 3, 4], "user": [1, 2], "history": []},
]
TSV = (
    "dense\tuser\titem\thistory\tcategory\tbrand\n"
    "0.5,1.0,-2.25,0.0\t7\t3\t1,2,3\t\t4\n"
    "0,0,0,1\t\t5,96,200\t\t20,-1\t\n"
    "\n"
    "1e-3,2.5,3,4\t1,2\t\t\t\t\n"
)


def expected_scores(ranker: Ranker) -> dict[str, Any]:
    inputs: dict[str, Any] = {"dense": np.array([s["dense"] for s in SAMPLES], np.float32)}
    for name in ("user", "item", "history", "category", "brand"):
        bags = [np.atleast_1d(np.array(s.get(name, []), np.int64)) for s in SAMPLES]
        inputs[name] = np.concatenate(bags)
        inputs[f"{name}.lengths"] = np.array([len(bag) for bag in bags], np.int32)
    return ranker.predict(inputs)


@pytest.mark.parametrize("form", ["csv", "stdin", "stdin tsv"])
def test_every_form_of_the_samples_scores_the_same(
    form: str, ranker: Ranker, tmp_path: Path, sharded_infer: Command
) -> None:
    source, options, content = "-", list[str](), json.dumps(SAMPLES)
    match form:
        case "csv":
            source = str(tmp_path / "s.csv")
            Path(source).write_text(TSV.replace(",", "|").replace("\t", ","))
        case "stdin tsv":
            options, content = ["--tsv"], TSV
    words = ("predict", source, "-r", ranker.repository, *options, "--json")
    fields = sharded_infer(*words, stdin=content).json()
    assert (fields["model"], fields["version"]) == (MODEL, 1)
    expected = expected_scores(ranker)
    assert list(fields["scores"]) == list(expected)
    for output, scores in expected.items():
        assert np.array_equal(np.array(fields["scores"][output], np.float32), scores)


def test_scores_are_printed_as_tsv_with_every_digit(ranker: Ranker, sharded_infer: Command) -> None:
    done = sharded_infer("predict", "-", "-r", ranker.repository, stdin=json.dumps(SAMPLES))
    heading, *lines = done.out.splitlines()
    assert heading.split("\t") == ["score", "labels"] and len(lines) == len(SAMPLES)
    expected = expected_scores(ranker)
    for position, line in enumerate(lines):
        score, labels = line.split("\t")
        assert np.float32(score) == expected["score"][position]
        assert [np.float32(label) for label in labels.split(",")] == list(
            expected["labels"][position]
        )


def test_a_server_and_a_repository_score_the_same_to_the_bit(
    ranker: Ranker, server: RunningServer, sharded_infer: Command
) -> None:
    text = json.dumps(SAMPLES)
    remote = ("predict", "-", "-a", server.grpc_url, "-m", MODEL)
    for more in (("--json",), (), ("--version", 1), ("--version", "latest")):
        here = sharded_infer("predict", "-", "-r", ranker.repository, *more, stdin=text)
        there = sharded_infer(*remote, *more, stdin=text)
        assert here.code == there.code == 0, there.err
        assert here.out == there.out
    unnamed = sharded_infer("predict", "-", "-a", server.grpc_url, stdin=text)
    assert unnamed.code == 0, unnamed.err


def test_predict_takes_labels_of_the_repository(
    ranker: Ranker, tmp_path: Path, sharded_infer: Command
) -> None:
    where = ("predict", "-", "-r", ranker.repository, "--version")
    sharded_infer(*where, "stable", stdin=json.dumps(SAMPLES)).refused("'stable'")
    labelled = shutil.copytree(ranker.repository, tmp_path / "labelled")
    Repository(labelled).set_label(MODEL, "stable", 1)
    where = ("predict", "-", "-r", labelled, "--json", "--version")
    for name in ("stable", "latest", "1"):
        assert sharded_infer(*where, name, stdin=json.dumps(SAMPLES)).json()["version"] == 1
    sharded_infer(*where, "7", stdin=json.dumps(SAMPLES)).refused("no version 7")


def test_predict_refuses_an_altered_table_unless_told_not_to_look(
    ranker: Ranker, tmp_path: Path, sharded_infer: Command
) -> None:
    copied = shutil.copytree(ranker.repository, tmp_path / "altered")
    file = next(copied.glob("*/1/tables/*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    where = ("predict", "-", "-r", copied)
    sharded_infer(*where, stdin=json.dumps(SAMPLES)).refused(file.name)
    done = sharded_infer(*where, "--no-verify", stdin=json.dumps(SAMPLES))
    assert done.code == 0, done.err


def test_what_a_server_refuses_is_passed_on(server: RunningServer, sharded_infer: Command) -> None:
    remote = ("predict", "-", "-a", server.grpc_url)
    good = json.dumps(SAMPLES)
    sharded_infer(*remote, "--version", "newest", stdin=good).refused("NOT_FOUND", "'newest'")
    sharded_infer(*remote, "-m", "other", stdin=good).refused("NOT_FOUND", "'other'")
    outside = json.dumps({"dense": [0, 0, 0, 0], "user": [1, 50]})
    words = (server.grpc_url, "INVALID_ARGUMENT", "'user'", "sample 0", "id 50")
    sharded_infer(*remote, "-m", MODEL, stdin=outside).refused(*words)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        done = sharded_infer("predict", "-", "-a", address, "-m", MODEL, stdin=good)
    done.refused(address, "UNAVAILABLE")


def test_predict_takes_one_place_to_score_and_a_file_that_can_be_read(
    ranker: Ranker, tmp_path: Path, sharded_infer: Command
) -> None:
    good = json.dumps(SAMPLES)
    both = ("-r", ranker.repository, "-a", "127.0.0.1:1", "-m", MODEL)
    sharded_infer("predict", "-", *both, stdin=good).refused("one of --repository and --address")
    sharded_infer("predict", "-", stdin=good).refused("one of --repository and --address")
    missing = tmp_path / "none.json"
    sharded_infer("predict", missing, "-r", ranker.repository).refused(missing, "cannot be read")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe")
    sharded_infer("predict", binary, "-r", ranker.repository).refused(binary, "cannot be read")


def test_doctor_names_the_kernels_and_a_limit_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = {finding.check: finding for finding in examine([])}["kernels"]
    assert kernels.verdict is not Verdict.PROBLEM
    assert kernels.detail.startswith(("avx512", "avx2", "baseline", "not compiled"))
    if kernels.verdict is Verdict.OK:
        monkeypatch.setenv("SHARDED_INFER_MAX_INSTRUCTION_SET", "avx3")
        refused = {finding.check: finding for finding in examine([])}["kernels"]
        assert refused.verdict is Verdict.PROBLEM and "got 'avx3'" in refused.detail


def test_doctor_finds_this_installation_well_and_a_taken_port_a_problem(
    sharded_infer: Command,
) -> None:
    with socket.socket() as free, socket.socket() as taken:
        for each in (free, taken):
            each.bind(("127.0.0.1", 0))
        taken.listen()
        ports = [each.getsockname()[1] for each in (free, taken)]
        free.close()
        done = sharded_infer("doctor", "--json", "--port", ports[0], "--port", ports[1])
        assert done.code == 1
        table = sharded_infer("doctor", "--port", ports[1])
        assert table.code == 1 and f"port {ports[1]}" in table.out
    findings = {finding["check"]: finding for finding in json.loads(done.out)}
    problems = [name for name, found in findings.items() if found["verdict"] == "problem"]
    assert problems == [f"port {ports[1]}"]
    assert findings[f"port {ports[0]}"] == {
        "check": f"port {ports[0]}",
        "verdict": "ok",
        "detail": "free",
    }
    assert {"python", "torch", "fbgemm", "cpu", "tls", "row reads", "import serving"} <= set(
        findings
    )
    assert findings["row reads"]["detail"].startswith(("io_uring", "threads: io_uring"))
    assert all(found["detail"] for found in findings.values())
    assert sharded_infer("doctor", "--port", ports[0]).code == 0


def test_doctor_tries_the_pages_of_a_repository(sharded_infer: Command, tmp_path: Path) -> None:
    done = sharded_infer("doctor", "--json", "--port", 0, "--folder", tmp_path)
    (found,) = (f for f in json.loads(done.out) if f["check"] == "table pages")
    if has_large_folios(tmp_path):
        assert found["verdict"] == "ok" and "are mapped in 2 MiB pages" in found["detail"]
    assert str(tmp_path) in found["detail"] and list(tmp_path.iterdir()) == []
    (refused,) = (f for f in examine([], Path("/proc")) if f.check == "table pages")
    assert refused.verdict is Verdict.NOTE and "cannot be tried in /proc" in refused.detail


def test_a_wrong_command_line_is_exit_code_2(sharded_infer: Command) -> None:
    for words in (("serv",), ("inspect",), ("serve", "-r", "x", "--slots", "-1"), ("publish",)):
        done = sharded_infer(*words)
        assert done.code == 2 and done.out == "" and done.err
