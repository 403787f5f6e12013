import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.reports.quantization.page import render_quantization_page
from tests.serving.test_cli import SPEC, trained
from tests.serving.test_cli import Files as ModelFiles
from tests.support.manifest_file import edit_manifest
from tests.support.servers import Command, run

# The tables say no format and the model has no gate.
PLAIN = SPEC.replace('format = "bf16"\n', "").partition("[gate]")[0]
ROWS = {"C1": 30, "C2": 12}
FP32_BYTES = 4 * 8 * 42
LARGE_ROWS = 5_859_375
LARGE = f"""
name = "large"
[[tables]]
name = "t"
rows = {LARGE_ROWS}
dim = 128
"""
LARGE_BYTES = 4 * 128 * LARGE_ROWS
# The command, with what Linux says of its process behind its errors.
WITH_STATUS = """
import sys
from serving.cli import main
try:
    main()
finally:
    print(open("/proc/self/status").read(), file=sys.stderr)
"""


class Files(ModelFiles):
    @property
    def calibration(self) -> Path:
        return self.folder / "samples.jsonl"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def describe(self, more: str) -> None:
        self.spec.write_text(PLAIN + more)

    def quantize(self, *more: object) -> tuple[object, ...]:
        return ("quantize", "--spec", self.spec, "--weights", self.weights, *more)

    def nothing_new(self) -> bool:
        """True if only the user's files exist, and no version."""
        had = {self.spec, self.weights, self.calibration, self.repository}
        versions = self.repository / "clicks"
        return set(self.folder.iterdir()) <= had and not any(versions.glob("*"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path, tmp_path / "model.toml", tmp_path / "model.safetensors")
    files.describe("")
    save_file(trained(), files.weights)
    generator = np.random.default_rng(0)
    samples = [
        {
            "label": number % 2,
            "dense": generator.standard_normal(4).round(3).tolist(),
            "C1": int(generator.integers(30)),
            "C1_history": generator.integers(0, 30, generator.integers(4)).tolist(),
            "C2": generator.integers(0, 12, generator.integers(3)).tolist(),
        }
        for number in range(300)
    ]
    files.calibration.write_text("\n".join(map(json.dumps, samples)))
    return files


def table_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("tables/*")}


def formats(fields: Any) -> dict[str, str]:
    return {t["name"]: t["row_format"] for t in fields["tables"]}


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


def test_quantize_tells_people_sizes_scores_and_the_folder(
    files: Files, sharded_infer: Command
) -> None:
    words = files.quantize("--out", files.out, "--calibration", files.calibration)
    done = sharded_infer(*words)
    assert (done.code, done.err) == (0, "")
    sizes, scores, folder = done.out.splitlines()
    assert sizes == "tables 1.34 kB -> 504 B (37.5%)"
    assert scores.startswith("calibration, 300 samples: scores differ by ")
    assert "AUC 0." in scores and " -> 0." in scores
    assert folder == str(files.out)


def test_a_folder_that_cannot_be_made_is_refused(files: Files, sharded_infer: Command) -> None:
    sharded_infer(*files.quantize()).refused("--out", "--dry-run")
    assert files.nothing_new()
    done = sharded_infer(*files.quantize("--out", files.weights / "out"))
    done.refused(files.weights, "cannot be written")


def test_a_dry_run_shows_formats_sizes_and_reasons_and_writes_nothing(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization.overrides]\n"*2" = "int4"\n')
    done = sharded_infer(*files.quantize("--dry-run", "--out", files.out))
    assert (done.code, done.err) == (0, "")
    for words in (
        ("C1", "30", "int8", "960 B", "360 B", "the spec's default"),
        ("C2", "12", "int4", "384 B", "96 B", "the spec's override '*2'"),
    ):
        (line,) = [line for line in done.out.splitlines() if line.startswith(f"│ {words[0]} ")]
        assert [word for word in words if word not in line] == []
    assert done.out.endswith("tables 1.34 kB -> 456 B (33.9%)\n")
    fields = sharded_infer(*files.quantize("--dry-run", "--json")).json()
    assert (fields["model"], fields["loss"]) == ("clicks", None)
    assert (fields["fp32_bytes"], fields["stored_bytes"]) == (FP32_BYTES, 456)
    assert fields["tables"][0] == {
        "name": "C1",
        "row_format": "int8",
        "fp32_bytes": 4 * 8 * 30,
        "stored_bytes": 12 * 30,
        "reason": "the spec's default",
    }
    assert files.nothing_new()


def test_a_dry_run_without_a_budget_reads_no_rows(tmp_path: Path) -> None:
    spec, weights = tmp_path / "large.toml", tmp_path / "large.safetensors"
    spec.write_text(LARGE)
    shape = {"dtype": "F32", "shape": [LARGE_ROWS, 128], "data_offsets": [0, LARGE_BYTES]}
    header = json.dumps({"t": shape}).encode()
    with weights.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        # A hole of 3 GB.
        file.truncate(8 + len(header) + LARGE_BYTES)
    words = ("quantize", "--spec", spec, "--weights", weights, "--dry-run", "--json")
    done = run(*words, forked=False, program=WITH_STATUS)
    fields = json.loads(done.stdout)
    assert (fields["fp32_bytes"], fields["stored_bytes"]) == (LARGE_BYTES, LARGE_BYTES // 512 * 132)
    (peak,) = (line.split()[1] for line in done.stderr.splitlines() if line.startswith("VmHWM:"))
    # The libraries take some 400 MB; rows that were read would count, mapped or not.
    assert 0 < int(peak) * 1024 < LARGE_BYTES / 2


def test_what_a_budget_chose_is_what_is_written(files: Files, sharded_infer: Command) -> None:
    budget = ("--memory-budget", "0.4KB", "--json")
    chosen = sharded_infer(*files.quantize("--dry-run", *budget)).json()
    written = sharded_infer(*files.quantize("--out", files.out, *budget)).json()
    assert formats(written) == formats(chosen)
    assert len(set(formats(written).values())) > 1
    assert written["budget"]["kind"] == "memory"
    assert written["budget"]["limit"] == 400 >= written["budget"]["bytes"] == chosen["stored_bytes"]
    assert written["budget"]["loss"] == chosen["loss"] > written["budget"]["least_loss"]
    assert written["budget"]["least_bytes"] == 6 * 42 and written["budget"]["sampled_rows"] == 42
    assert formats(json.loads((files.out / "tables.json").read_text())) == formats(written)


def test_a_budget_on_the_command_line_replaces_the_specs(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization]\nmemory_budget = "0.1KB"\n')
    words = ("the smallest formats take 252 bytes", "100 are allowed", "takes 1.34 kB and loses 0")
    sharded_infer(*files.quantize("--dry-run")).refused("memory budget", *words)
    fields = sharded_infer(*files.quantize("--dry-run", "--json", "--error-budget", 1.0)).json()
    assert set(formats(fields).values()) == {"int2"} and 0 < fields["loss"] <= 1
    assert all(t["reason"].startswith("chosen by the budget: ") for t in fields["tables"])


def test_a_gate_on_the_auc_needs_labels(files: Files, sharded_infer: Command) -> None:
    files.describe("[gate]\nmax_score_diff = 0.9\nmax_auc_drop = 0.01\n")
    sharded_infer(*files.publish()).refused("gate.max_auc_drop", "with labels, none were given")
    files.calibration.write_text(files.calibration.read_text().replace('"label": 0', '"label": 1'))
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


def test_publish_and_quantize_write_the_same_tables(files: Files, sharded_infer: Command) -> None:
    options = ("--memory-budget", "0.4KB", "--json")
    assert sharded_infer(*files.quantize("--out", files.out, *options)).code == 0
    version = Path(sharded_infer(*files.publish(*options)).json()["path"])
    assert table_files(version) == table_files(files.out)
    described = json.loads((files.out / "tables.json").read_text())
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["tables"] == described["tables"]
    assert described["files"].items() <= manifest["files"].items()
    assert (version / "report.json").read_bytes() == (files.out / "report.json").read_bytes()
    spec = manifest["spec"]
    assert {t["name"]: t["format"] for t in spec["tables"]} == formats(described)
    assert spec["quantization"]["memory_budget"] == "0.4KB"


@pytest.fixture
def published(files: Files, sharded_infer: Command) -> Path:
    words = files.publish("--memory-budget", "0.4KB", "--calibration", files.calibration)
    return Path(sharded_infer(*words, "--json").json()["path"])


def test_inspect_shows_the_report_and_writes_its_page(
    published: Path, files: Files, tmp_path: Path, sharded_infer: Command
) -> None:
    page = tmp_path / "page.html"
    report = json.loads((published / "report.json").read_text())
    words = ("inspect", "-r", files.repository)
    done = sharded_infer(*words, "--report", "--html", page)
    assert (done.code, done.err) == (0, "")
    for said in ("clicks, rows encoded by", "300 calibration samples", "budget of memory", *ROWS):
        assert said in done.out
    assert page.read_text() == render_quantization_page(report_from_fields(report))
    assert sharded_infer(*words, "--report", "--json").json() == report
    # Without --report, it is the manifest.
    assert "files" in sharded_infer(*words, "--json").json()
    nowhere = tmp_path / "none" / "page.html"
    sharded_infer(*words, "--html", nowhere).refused(nowhere, "cannot be written")


def test_a_damaged_report_is_refused_by_name(
    published: Path, files: Files, tmp_path: Path, sharded_infer: Command
) -> None:
    path, words = published / "report.json", ("inspect", "-r", files.repository)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"clicks", b"clocks"))
    done = sharded_infer(*words, "--html", tmp_path / "p")
    done.refused(path, "altered", "SHA-256")
    assert not (tmp_path / "p").exists()
    # Nor does a right hash make it a report.
    for forged, said in ((b"{", "not JSON"), (b"[]", "expected a JSON object")):
        record = {"bytes": len(forged), "sha256": hashlib.sha256(forged).hexdigest()}
        edit_manifest(published, lambda m: m["files"].update({path.name: record}))  # noqa: B023
        path.write_bytes(forged)
        sharded_infer(*words, "--report").refused("report.json", said)
    edit_manifest(published, lambda manifest: manifest["files"].pop("report.json"))
    path.unlink()
    sharded_infer(*words, "--report").refused("holds no report.json")
    assert sharded_infer("verify", "-r", files.repository).code == 0
