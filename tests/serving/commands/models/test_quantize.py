import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from sharded_infer import open_model
from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.reports.quantization.page import render_quantization_page
from sharded_infer.samples.request import batch_samples
from sharded_infer.specs.spec_file import load_spec
from sharded_infer.zoo.dlrm import DLRM
from tests.support.manifest_file import edit_manifest
from tests.support.servers import Command, command, environment

SPEC = """
name = "clicks"

[[tables]]
name = "user"
rows = 400
dim = 8
features = ["user", "friend"]

[[tables]]
name = "item"
rows = 200
dim = 8
pooling = "mean"

[[tables]]
name = "ad"
rows = 60
dim = 8
weights = "odd.name"

[dense]
inputs = { dense = 4 }

[tower]
architecture = "dlrm"
bottom = [16, 8]
top = [16, 1]
"""
ROWS = {"user": 400, "item": 200, "ad": 60}
FP32_BYTES = 4 * 8 * 660
LARGE = """
name = "large"
[[tables]]
name = "t"
rows = 5_859_375
dim = 128
"""
LARGE_BYTES = 4 * 128 * 5_859_375
SAMPLES = 300

Sample = dict[str, Any]


def make_tower() -> DLRM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return DLRM(dense_width=4, feature_dims=[8] * 4, bottom=[16, 8], top=[16, 1])


def trained() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    names = {"user": "model.embedding_bags.user.weight", "item": "item", "ad": "odd.name"}
    weights = {names[n]: torch.randn(rows, 8, generator=generator) for n, rows in ROWS.items()}
    return weights | {f"tower.{name}": p for name, p in make_tower().state_dict().items()}


def fp32_scores(samples: list[Sample]) -> NDArray[np.float32]:
    weights = trained()
    user, item, ad = (weights[n] for n in ("model.embedding_bags.user.weight", "item", "odd.name"))
    pooled = [
        torch.cat(
            [
                user[sample["user"]],
                user[sample["friend"]].sum(0),
                item[sample["item"]].sum(0) / max(1, len(sample["item"])),
                ad[sample["ad"]].sum(0),
            ]
        )
        for sample in samples
    ]
    dense = torch.tensor([sample["dense"] for sample in samples])
    with torch.inference_mode():
        scores: Tensor = make_tower()(dense, torch.stack(pooled))
    return scores.numpy()


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    """Samples whose clicks have the higher scores: the trained model's AUC is 1."""
    generator = np.random.default_rng(0)
    made: list[Sample] = [
        {
            "dense": generator.standard_normal(4).round(3).tolist(),
            "user": int(generator.integers(400)),
            "friend": generator.integers(0, 400, generator.integers(4)).tolist(),
            "item": generator.integers(0, 200, generator.integers(3)).tolist(),
            "ad": generator.integers(0, 60, 1).tolist(),
        }
        for _ in range(SAMPLES)
    ]
    scores = fp32_scores(made)
    clicks = (scores > np.median(scores)).astype(int).tolist()
    return [{"label": click, **sample} for click, sample in zip(clicks, made, strict=True)]


@dataclass(frozen=True, slots=True)
class Files:
    folder: Path
    spec: Path
    weights: Path
    calibration: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def describe(self, more: str) -> None:
        self.spec.write_text(SPEC + more)

    def quantize(self, *more: object) -> tuple[object, ...]:
        return ("quantize", "--spec", self.spec, "--weights", self.weights, *more)

    def publish(self, *more: object) -> tuple[object, ...]:
        words = ("publish", "--spec", self.spec, "--weights", self.weights)
        return (*words, "-r", self.repository, *more)

    def nothing_new(self) -> bool:
        """True if only the user's files exist, and no version."""
        had = {self.spec, self.weights, self.calibration, self.repository}
        versions = self.repository / "clicks"
        return set(self.folder.iterdir()) <= had and not any(versions.glob("*"))


@pytest.fixture
def files(tmp_path: Path, samples: list[Sample]) -> Files:
    names = ("model.toml", "model.safetensors", "samples.jsonl")
    made = Files(tmp_path, *(tmp_path / name for name in names))
    made.describe("")
    save_file(trained(), made.weights)
    made.calibration.write_text("\n".join(map(json.dumps, samples)))
    return made


def table_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("tables/*")}


# ---------------------------------------------------------------- the folder


def test_quantize_makes_a_folder_and_says_what_it_did(files: Files, sharded_infer: Command) -> None:
    fields = sharded_infer(*files.quantize("--out", files.out, "--json")).json()
    assert fields.pop("seconds") > 0
    assert fields == json.loads((files.out / "report.json").read_text())
    assert (fields["model"], fields["budget"], fields["calibration"]) == ("clicks", None, None)
    assert fields["encoder"]
    assert [table["name"] for table in fields["tables"]] == list(ROWS)
    for table in fields["tables"]:
        rows = ROWS[table["name"]]
        assert (table["row_format"], table["rows"], table["dim"]) == ("int8", rows, 8)
        assert (table["fp32_bytes"], table["stored_bytes"]) == (32 * rows, 12 * rows)
        assert 0 < table["mean_squared_error"] < 1e-4 < table["mean_square"]
        assert table["zeroed"] == 0 and table["reason"] == "the spec's default"
        assert sum(table["row_errors"]["counts"]) == rows
    described = json.loads((files.out / "tables.json").read_text())
    assert {name: record["sha256"] for name, record in described["files"].items()} == {
        f"tables/{name}": hashlib.sha256(content).hexdigest()
        for name, content in table_files(files.out).items()
    }


def test_quantize_tells_people_sizes_scores_and_the_folder(
    files: Files, sharded_infer: Command
) -> None:
    words = files.quantize("--out", files.out, "--calibration", files.calibration)
    done = sharded_infer(*words)
    assert (done.code, done.err) == (0, "")
    sizes, scores, folder = done.out.splitlines()
    assert sizes == "tables 21.1 kB -> 7.92 kB (37.5%)"
    assert scores.startswith("calibration, 300 samples: scores differ by ")
    assert "AUC 1.00000 -> " in scores
    assert folder == str(files.out)


def test_a_folder_that_cannot_be_made_is_refused(files: Files, sharded_infer: Command) -> None:
    sharded_infer(*files.quantize()).refused("--out", "--dry-run")
    assert files.nothing_new()
    files.out.mkdir()
    (files.out / "mine").write_text("keep")
    sharded_infer(*files.quantize("--out", files.out)).refused(files.out, "is there already")
    assert [path.name for path in files.out.iterdir()] == ["mine"]
    done = sharded_infer(*files.quantize("--out", files.weights / "out"))
    done.refused(files.weights, "cannot be written")


# ---------------------------------------------------------------- dry runs


def test_a_dry_run_shows_formats_sizes_and_reasons_and_writes_nothing(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization.overrides]\n"it*" = "int4"\n')
    done = sharded_infer(*files.quantize("--dry-run", "--out", files.out))
    assert (done.code, done.err) == (0, "")
    for words in (
        ("user", "400", "int8", "12.8 kB", "4.80 kB", "the spec's default"),
        ("item", "200", "int4", "6.40 kB", "1.60 kB", "the spec's override 'it*'"),
        ("ad", "60", "int8", "1.92 kB", "720 B", "the spec's default"),
    ):
        (line,) = [line for line in done.out.splitlines() if line.startswith(f"│ {words[0]} ")]
        assert [word for word in words if word not in line] == []
    assert done.out.endswith("tables 21.1 kB -> 7.12 kB (33.7%)\n")
    fields = sharded_infer(*files.quantize("--dry-run", "--json")).json()
    assert (fields["model"], fields["loss"]) == ("clicks", None)
    assert (fields["fp32_bytes"], fields["stored_bytes"]) == (FP32_BYTES, 7120)
    assert fields["tables"][2] == {
        "name": "ad",
        "row_format": "int8",
        "fp32_bytes": 4 * 8 * 60,
        "stored_bytes": 12 * 60,
        "reason": "the spec's default",
    }
    assert files.nothing_new()


def write_large_checkpoint(path: Path) -> None:
    """A sparse file of 3 GB: a hole behind its header."""
    shape = {"dtype": "F32", "shape": [5_859_375, 128], "data_offsets": [0, LARGE_BYTES]}
    header = json.dumps({"t": shape}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + LARGE_BYTES)


def peak_memory(process: "subprocess.Popen[str]") -> int:
    """Runs a process to its end; its largest resident memory in bytes, mapped files included."""
    peak = 0
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        except OSError:
            break
        peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
        peak = max([peak, *peaks])
        time.sleep(0.002)
    return peak


def test_a_dry_run_without_a_budget_reads_no_rows(tmp_path: Path) -> None:
    spec, weights = tmp_path / "large.toml", tmp_path / "large.safetensors"
    spec.write_text(LARGE)
    write_large_checkpoint(weights)
    process = subprocess.Popen(
        command("quantize", "--spec", spec, "--weights", weights, "--dry-run", "--json"),
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    peak = peak_memory(process)
    fields = json.loads(process.communicate(timeout=120)[0])
    assert process.returncode == 0
    assert (fields["fp32_bytes"], fields["stored_bytes"]) == (LARGE_BYTES, LARGE_BYTES // 512 * 132)
    # The libraries take some 400 MB; rows that were read would count, mapped or not.
    assert 0 < peak < LARGE_BYTES / 2


# ---------------------------------------------------------------- formats


def formats(fields: Any) -> dict[str, str]:
    return {t["name"]: t["row_format"] for t in fields["tables"]}


def test_what_a_budget_chose_is_what_is_written(files: Files, sharded_infer: Command) -> None:
    budget = ("--memory-budget", "6KB", "--json")
    chosen = sharded_infer(*files.quantize("--dry-run", *budget)).json()
    made = sharded_infer(*files.quantize("--out", files.out, *budget)).json()
    assert formats(made) == formats(chosen)
    assert len(set(formats(made).values())) > 1
    assert made["budget"]["kind"] == "memory"
    assert made["budget"]["limit"] == 6000 >= made["budget"]["bytes"] == chosen["stored_bytes"]
    assert made["budget"]["loss"] == chosen["loss"] > made["budget"]["least_loss"]
    assert made["budget"]["least_bytes"] == 6 * 660 and made["budget"]["sampled_rows"] == 660
    assert formats(json.loads((files.out / "tables.json").read_text())) == formats(made)


def test_a_budget_on_the_command_line_replaces_the_specs(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization]\nmemory_budget = "1KB"\n')
    words = (
        "the smallest formats take 3960 bytes",
        "1000 are allowed",
        "takes 21.1 kB and loses 0",
    )
    sharded_infer(*files.quantize("--dry-run")).refused("memory budget", *words)
    fields = sharded_infer(*files.quantize("--dry-run", "--json", "--error-budget", 1.0)).json()
    assert set(formats(fields).values()) == {"int2"} and 0 < fields["loss"] <= 1
    assert all(t["reason"].startswith("chosen by the budget: ") for t in fields["tables"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory-budget", "6KB", "--error-budget", 0.1), ("exclude each other",)),
        (("--memory-budget", 6000), ("--memory-budget", "'6000'", "such as '70GB'")),
        (("--error-budget", "inf"), ("--error-budget", "got inf")),
    ],
)
def test_a_budget_that_cannot_be_is_refused(
    options: tuple[object, ...], words: tuple[str, ...], files: Files, sharded_infer: Command
) -> None:
    sharded_infer(*files.quantize("--out", files.out, *options)).refused(*words)
    sharded_infer(*files.publish(*options)).refused(*words)
    assert files.nothing_new()


# ---------------------------------------------------------------- calibration and its gates


def test_a_gate_that_fails_says_by_how_much_and_because_of_which_tables(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization]\nformat = "int2"\n[gate]\nmax_score_diff = 0.0001\n')
    options = ("--calibration", files.calibration)
    tables = (
        "the tables that contribute most, each by itself: ",
        "user (mean 0.",
        "item (",
        "ad (",
    )
    done = sharded_infer(*files.quantize("--out", files.out, *options))
    differs = "score 'score' differs from the fp32 model's by 0."
    done.refused("model 'clicks'", differs, "allows 0.0001 (gate.max_score_diff)", *tables)
    sharded_infer(*files.publish(*options)).refused("clicks", "0.0001", *tables)
    assert files.nothing_new()


def test_a_gate_on_the_auc_needs_labels(
    samples: list[Sample], files: Files, sharded_infer: Command
) -> None:
    files.describe("[gate]\nmax_score_diff = 0.9\nmax_auc_drop = 0.01\n")
    sharded_infer(*files.publish()).refused("gate.max_auc_drop", "with labels, none were given")
    files.calibration.write_text(json.dumps([{**sample, "label": 1} for sample in samples]))
    for words in (files.quantize("--out", files.out), files.publish()):
        done = sharded_infer(*words, "--calibration", files.calibration)
        done.refused("gate.max_auc_drop", "labels of both classes")
    assert files.nothing_new()


def test_calibration_needs_the_tower_and_its_absence_is_named(
    files: Files, sharded_infer: Command
) -> None:
    tables = {name: weight for name, weight in trained().items() if not name.startswith("tower.")}
    save_file(tables, files.weights)
    done = sharded_infer(*files.quantize("--out", files.out, "--calibration", files.calibration))
    done.refused("tower", "holds no 'tower.")
    assert files.nothing_new()
    assert sharded_infer(*files.quantize("--out", files.out)).code == 0


# ---------------------------------------------------------------- what is refused


def with_weight(key: str, weight: Tensor | None) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        weights: dict[str, Tensor | None] = {**trained(), key: weight}
        save_file({k: v for k, v in weights.items() if v is not None}, files.weights)

    return edit


EXTRA = "model.embedding_bags.forgotten.weight"
REFUSED: dict[str, tuple[Callable[[Files], object], tuple[str, ...]]] = {
    "a table left out": (with_weight("item", None), ("table 'item'", "holds none of")),
    "a table that the spec does not name": (
        with_weight(EXTRA, torch.zeros(5, 8)),
        ("table 'forgotten'", EXTRA, "quantization.ignore"),
    ),
    "too few rows": (with_weight("item", torch.zeros(199, 8)), ("'item'", "200 rows", "[199, 8]")),
    "no checkpoint": (lambda f: f.weights.unlink(), ("model.safetensors", "no such weights")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_quantize_refuses_in_one_line_and_leaves_nothing(
    case: str, files: Files, sharded_infer: Command
) -> None:
    edit, words = REFUSED[case]
    edit(files)
    for options in (("--out", files.out), ("--dry-run",)):
        sharded_infer(*files.quantize(*options)).refused(*words)
        assert files.nothing_new()


def test_tables_that_the_model_does_not_use_can_be_ignored(
    files: Files, sharded_infer: Command
) -> None:
    with_weight(EXTRA, torch.zeros(5, 8))(files)
    files.describe('[quantization]\nignore = ["for*"]\n')
    fields = sharded_infer(*files.quantize("--out", files.out, "--json")).json()
    assert [table["name"] for table in fields["tables"]] == list(ROWS)


# ---------------------------------------------------------------- publish


def test_publish_and_quantize_write_the_same_tables(files: Files, sharded_infer: Command) -> None:
    options = ("--memory-budget", "6KB", "--json")
    assert sharded_infer(*files.quantize("--out", files.out, *options)).code == 0
    version = Path(sharded_infer(*files.publish(*options)).json()["path"])
    assert table_files(version) == table_files(files.out)
    described = json.loads((files.out / "tables.json").read_text())
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["tables"] == described["tables"]
    assert described["files"].items() <= manifest["files"].items()
    assert (version / "report.json").read_bytes() == (files.out / "report.json").read_bytes()


@dataclass(frozen=True, slots=True)
class Published:
    repository: Path
    path: Path
    report: dict[str, Any]

    def copied(self, folder: Path) -> "Published":
        repository = shutil.copytree(self.repository, folder / "copy")
        return Published(repository, repository / "clicks" / "1", self.report)


@pytest.fixture
def published(files: Files, sharded_infer: Command) -> Published:
    words = files.publish("--memory-budget", "6KB", "--calibration", files.calibration)
    path = Path(sharded_infer(*words, "--json").json()["path"])
    return Published(files.repository, path, json.loads((path / "report.json").read_text()))


def test_a_version_keeps_its_formats_and_its_report(
    published: Published, sharded_infer: Command
) -> None:
    manifest = json.loads((published.path / "manifest.json").read_text())
    chosen = formats(published.report)
    assert len(set(chosen.values())) > 1
    assert formats(manifest) == chosen
    assert {t["name"]: t["format"] for t in manifest["spec"]["tables"]} == chosen
    assert manifest["spec"]["quantization"]["memory_budget"] == "6KB"
    assert "report.json" in manifest["files"]
    fields = sharded_infer("verify", "-r", published.repository, "--json").json()
    assert fields["files"] == len(manifest["files"])


def test_what_is_served_differs_from_fp32_as_the_report_says(
    published: Published, files: Files, samples: list[Sample]
) -> None:
    inputs = [{k: v for k, v in sample.items() if k != "label"} for sample in samples]
    request = batch_samples(load_spec(files.spec), inputs)
    served = open_model(published.path).predict(request)["score"]
    differences = np.abs(served - fp32_scores(samples))
    _, mix, *_ = published.report["calibration"]["mixes"]
    assert mix["name"] == "published"
    assert differences.max() == pytest.approx(mix["max_score_diff"], abs=1e-6)
    assert differences.mean() == pytest.approx(mix["mean_score_diff"], abs=1e-6)
    assert 0.001 < differences.max() <= 0.05


def test_inspect_shows_the_report_and_writes_its_page(
    published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    page = tmp_path / "page.html"
    words = ("inspect", "-r", published.repository)
    done = sharded_infer(*words, "--report", "--html", page)
    assert (done.code, done.err) == (0, "")
    for said in ("clicks, rows encoded by", "300 calibration samples", "budget of memory", *ROWS):
        assert said in done.out
    assert page.read_text() == render_quantization_page(report_from_fields(published.report))
    assert sharded_infer(*words, "--report", "--json").json() == published.report
    # Without --report, it is the manifest.
    assert "files" in sharded_infer(*words, "--json").json()
    nowhere = tmp_path / "none" / "page.html"
    sharded_infer(*words, "--html", nowhere).refused(nowhere, "cannot be written")


def test_a_damaged_report_is_refused_by_name(
    published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    damaged = published.copied(tmp_path)
    path = damaged.path / "report.json"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    done = sharded_infer("inspect", "-r", damaged.repository, "--html", tmp_path / "p")
    done.refused(path, "altered", "SHA-256")
    assert not (tmp_path / "p").exists()
    # Nor does a right hash make it a report.
    for forged, words in (
        (b"{", ("report.json", "not JSON")),
        (b"[]", ("report.json", "expected a JSON object")),
        (b"{}", ("report.json", "model: Field required")),
    ):
        record = {"bytes": len(forged), "sha256": hashlib.sha256(forged).hexdigest()}
        files = {"report.json": record}
        edit_manifest(damaged.path, lambda manifest, new=files: manifest["files"].update(new))
        path.write_bytes(forged)
        sharded_infer("inspect", "-r", damaged.repository, "--report").refused(*words)
    edit_manifest(damaged.path, lambda manifest: manifest["files"].pop("report.json"))
    path.unlink()
    sharded_infer("inspect", "-r", damaged.repository, "--report").refused("holds no report.json")
    assert sharded_infer("verify", "-r", damaged.repository).code == 0
