import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed import checkpoint

from sharded_infer import open_model
from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.reports.quantization.page import render_quantization_page
from sharded_infer.samples.request import batch_samples
from sharded_infer.specs.spec_file import load_spec
from sharded_infer.zoo.dlrm import DLRM
from tests.support.manifest_file import edit_manifest
from tests.support.servers import Command, command, environment
from tests.support.torchrec_models import TABLES, Batch, TorchRec, make_batch, torchrec

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
INT8_BYTES = 12 * 660
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


def test_quantize_needs_a_folder_or_a_dry_run(files: Files, sharded_infer: Command) -> None:
    sharded_infer(*files.quantize()).refused("--out", "--dry-run")
    assert files.nothing_new()


def test_what_is_in_the_folders_place_stays_as_it_is(files: Files, sharded_infer: Command) -> None:
    files.out.mkdir()
    (files.out / "mine").write_text("keep")
    sharded_infer(*files.quantize("--out", files.out)).refused(files.out, "is there already")
    assert [path.name for path in files.out.iterdir()] == ["mine"]
    done = sharded_infer(*files.quantize("--out", files.weights))
    done.refused(files.weights, "is there already")
    done = sharded_infer(*files.quantize("--out", files.weights / "out"))
    done.refused(files.weights, "cannot be written")


# ---------------------------------------------------------------- dry runs


def test_a_dry_run_shows_formats_sizes_and_reasons_and_writes_nothing(
    files: Files, sharded_infer: Command
) -> None:
    files.describe('[quantization.overrides]\nitem = "int4"\n')
    done = sharded_infer(*files.quantize("--dry-run", "--out", files.out))
    assert (done.code, done.err) == (0, "")
    for words in (
        ("user", "400", "int8", "12.8 kB", "4.80 kB", "the spec's default"),
        ("item", "200", "int4", "6.40 kB", "1.60 kB", "the spec's override"),
        ("ad", "60", "int8", "1.92 kB", "720 B", "the spec's default"),
    ):
        (line,) = [line for line in done.out.splitlines() if line.startswith(f"│ {words[0]} ")]
        assert [word for word in words if word not in line] == []
    assert done.out.endswith("tables 21.1 kB -> 7.12 kB (33.7%)\n")
    assert files.nothing_new()


def test_a_dry_run_says_the_same_as_json(files: Files, sharded_infer: Command) -> None:
    fields = sharded_infer(*files.quantize("--dry-run", "--json")).json()
    assert (fields["model"], fields["loss"]) == ("clicks", None)
    assert (fields["fp32_bytes"], fields["stored_bytes"]) == (FP32_BYTES, INT8_BYTES)
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


def test_overrides_in_the_spec_choose_formats_by_name(files: Files, sharded_infer: Command) -> None:
    files.describe('[quantization]\nformat = "fp16"\noverrides = { "us*" = "bf16", ad = "int2" }\n')
    fields = sharded_infer(*files.quantize("--out", files.out, "--json")).json()
    assert formats(fields) == {"user": "bf16", "item": "fp16", "ad": "int2"}
    reasons = [table["reason"] for table in fields["tables"]]
    assert reasons == [
        "the spec's override 'us*'",
        "the spec's default",
        "the spec's override 'ad'",
    ]


def test_a_memory_budget_chooses_formats_that_fit(files: Files, sharded_infer: Command) -> None:
    losses = []
    for limit in (4_000, 6_000, 8_000, 12_000, 30_000):
        words = files.quantize("--dry-run", "--json", "--memory-budget", f"{limit / 1000}KB")
        fields = sharded_infer(*words).json()
        assert sum(table["stored_bytes"] for table in fields["tables"]) == fields["stored_bytes"]
        assert fields["stored_bytes"] <= limit
        assert all(t["reason"].startswith("chosen by the budget: ") for t in fields["tables"])
        losses.append(fields["loss"])
    assert set(formats(fields).values()) == {"fp32"} and losses[-1] == 0
    assert losses == sorted(losses, reverse=True) and len(set(losses)) == len(losses)


def test_an_error_budget_chooses_the_smallest_formats_that_lose_no_more(
    files: Files, sharded_infer: Command
) -> None:
    sizes = []
    for limit in (0.0, 1e-6, 1e-4, 1e-2, 1.0):
        words = files.quantize("--dry-run", "--json", "--error-budget", limit)
        fields = sharded_infer(*words).json()
        assert fields["loss"] <= limit
        sizes.append(fields["stored_bytes"])
    assert set(formats(fields).values()) == {"int2"} and sizes[0] == FP32_BYTES
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == len(sizes)


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
    sharded_infer(*files.quantize("--dry-run")).refused("memory budget", "3960 bytes", "1000")
    assert sharded_infer(*files.quantize("--dry-run", "--error-budget", 0.01)).code == 0
    files.describe('[quantization]\nerror_budget = 0\nformats = ["int2", "int8"]\n')
    done = sharded_infer(*files.quantize("--dry-run"))
    done.refused("error budget", "the most exact takes 7.92 kB and loses ")
    words = files.quantize("--dry-run", "--json", "--memory-budget", "5KB")
    assert set(formats(sharded_infer(*words).json()).values()) == {"int2", "int8"}


BAD_BUDGETS: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "both": (
        ("--memory-budget", "6KB", "--error-budget", 0.1),
        ("--memory-budget", "--error-budget", "exclude each other"),
    ),
    "too small": (
        ("--memory-budget", "3KB"),
        ("the smallest formats take 3960 bytes", "3000 are allowed", "takes 21.1 kB and loses 0"),
    ),
    "no unit": (("--memory-budget", 6000), ("--memory-budget", "'6000'", "such as '70GB'")),
    "no size": (("--memory-budget", "much"), ("--memory-budget", "'much'", "such as '70GB'")),
    "infinite": (("--error-budget", "inf"), ("--error-budget", "got inf")),
}


@pytest.mark.parametrize("case", BAD_BUDGETS)
def test_a_budget_that_cannot_be_is_refused(
    case: str, files: Files, sharded_infer: Command
) -> None:
    options, words = BAD_BUDGETS[case]
    sharded_infer(*files.quantize("--out", files.out, *options)).refused(*words)
    sharded_infer(*files.publish(*options)).refused(*words)
    assert files.nothing_new()


def test_rows_that_hold_no_numbers_are_refused_or_stored_as_zero(
    files: Files, sharded_infer: Command
) -> None:
    weights = trained()
    weights["item"][7, 2], weights["item"][9] = float("nan"), float("inf")
    save_file(weights, files.weights)
    words = files.quantize("--out", files.out, "--json")
    sharded_infer(*words).refused("table 'item', row 7", "NaN")
    assert files.nothing_new()
    files.describe('[quantization]\nnonfinite = "zero"\n')
    fields = sharded_infer(*words).json()
    assert [table["zeroed"] for table in fields["tables"]] == [0, 9, 0]


# ---------------------------------------------------------------- calibration and its gates


def as_tsv(samples: list[Sample]) -> str:
    names = list(samples[0])
    cells = [[sample[name] for name in names] for sample in samples]
    lines = [[",".join(map(str, np.atleast_1d(cell))) for cell in line] for line in cells]
    return "\n".join(["\t".join(names), *map("\t".join, lines)])


def as_tensors(samples: list[Sample]) -> dict[str, NDArray[np.generic]]:
    bags = [[np.atleast_1d(s[name]) for s in samples] for name in ("user", "friend", "item", "ad")]
    tensors: dict[str, NDArray[np.generic]] = {
        "sparse.values": np.concatenate([bag for of_feature in bags for bag in of_feature]).astype(
            np.int64
        ),
        "sparse.lengths": np.array([[len(bag) for bag in of_feature] for of_feature in bags]),
        "dense.dense": np.array([s["dense"] for s in samples], np.float32),
    }
    if "label" in samples[0]:
        tensors["label"] = np.array([s["label"] for s in samples], np.float32)
    return tensors


@pytest.mark.parametrize("labelled", [True, False])
def test_every_form_of_calibration_samples_gives_the_same_figures(
    labelled: bool, samples: list[Sample], files: Files, sharded_infer: Command
) -> None:
    if not labelled:
        samples = [{k: v for k, v in sample.items() if k != "label"} for sample in samples]
    (files.folder / "s.json").write_text(json.dumps(samples))
    (files.folder / "s.jsonl").write_text("\n".join(map(json.dumps, samples)))
    (files.folder / "s.tsv").write_text(as_tsv(samples))
    save_arrays(as_tensors(samples), files.folder / "s.safetensors")
    found = []
    for ending in ("json", "jsonl", "tsv", "safetensors"):
        options = ("--out", files.folder / ending, "--calibration", files.folder / f"s.{ending}")
        found.append(sharded_infer(*files.quantize(*options, "--json")).json()["calibration"])
    assert all(calibration == found[0] for calibration in found)
    assert found[0]["samples"] == SAMPLES
    assert found[0]["labelled"] == (SAMPLES if labelled else 0)
    mixes = {mix["name"]: mix for mix in found[0]["mixes"]}
    # All tables are int8: that mix is what is published.
    assert list(mixes) == ["fp32", "published", "fp16", "int4", "int2"]
    order = ["fp32", "fp16", "published", "int4", "int2"]
    differences = [mixes[name]["mean_score_diff"] for name in order]
    assert differences == sorted(differences) and differences[0] == 0 < differences[1]
    assert mixes["fp32"]["auc"] == (1 if labelled else None)
    assert [mix["log_loss"] is not None for mix in mixes.values()] == [labelled] * 5
    assert {one["table"] for one in found[0]["contributions"]} == set(ROWS)


GATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "a score": (
        "max_score_diff = 0.0001",
        (
            "score 'score' differs from the fp32 model's by 0.",
            "allows 0.0001 (gate.max_score_diff)",
        ),
    ),
    "the AUC": (
        "max_score_diff = 0.9\nmax_auc_drop = 0.00001",
        ("the AUC of 'score' falls by 0.", "from 1 to 0.9", "allows 1e-05 (gate.max_auc_drop)"),
    ),
}


@pytest.mark.parametrize("case", GATES)
def test_a_gate_that_fails_says_by_how_much_and_because_of_which_tables(
    case: str, files: Files, sharded_infer: Command
) -> None:
    gate, words = GATES[case]
    files.describe(f'[quantization]\nformat = "int2"\n[gate]\n{gate}\n')
    options = ("--calibration", files.calibration)
    done = sharded_infer(*files.quantize("--out", files.out, *options))
    tables = (
        "the tables that contribute most, each by itself: ",
        "user (mean 0.",
        "item (",
        "ad (",
    )
    done.refused("model 'clicks'", *words, *tables)
    assert files.nothing_new()
    if case == "the AUC":
        sharded_infer(*files.publish(*options)).refused("model 'clicks'", *words, *tables)
    else:
        # The golden requests are the first calibration samples, and are scored before the rest.
        sharded_infer(*files.publish(*options)).refused("clicks", "0.0001", *tables)
    assert files.nothing_new()


def test_a_gate_on_the_auc_needs_labels_of_both_classes(
    samples: list[Sample], files: Files, sharded_infer: Command
) -> None:
    files.describe("[gate]\nmax_score_diff = 0.9\nmax_auc_drop = 0.01\n")
    unlabelled = [{k: v for k, v in sample.items() if k != "label"} for sample in samples]
    of_one_class = [{**sample, "label": 1} for sample in samples]
    options = ("--calibration", files.calibration)
    sharded_infer(*files.publish()).refused("gate.max_auc_drop", "with labels, none were given")
    files.calibration.write_text(json.dumps(unlabelled))
    sharded_infer(*files.publish(*options)).refused("gate.max_auc_drop", "none were given")
    both = ("gate.max_auc_drop", "labels of both classes")
    sharded_infer(*files.quantize("--out", files.out, *options)).refused(*both)
    files.calibration.write_text(json.dumps(of_one_class))
    sharded_infer(*files.quantize("--out", files.out, *options)).refused(*both)
    sharded_infer(*files.publish(*options)).refused(*both)
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


def truncate(files: Files) -> None:
    files.weights.write_bytes(files.weights.read_bytes()[:-1000])


EXTRA = "model.embedding_bags.forgotten.weight"
REFUSED: dict[str, tuple[Callable[[Files], object], tuple[str, ...]]] = {
    "a table left out": (with_weight("item", None), ("table 'item'", "holds none of")),
    "a table that the spec does not name": (
        with_weight(EXTRA, torch.zeros(5, 8)),
        ("table 'forgotten'", EXTRA, "quantization.ignore"),
    ),
    "too few rows": (with_weight("item", torch.zeros(199, 8)), ("'item'", "200 rows", "[199, 8]")),
    "another dim": (with_weight("item", torch.zeros(200, 4)), ("'item'", "dim 8", "[200, 4]")),
    "one axis": (with_weight("item", torch.zeros(1600)), ("'item'", "[1600]")),
    "integers": (
        with_weight("item", torch.zeros(200, 8, dtype=torch.int64)),
        ("'item'", "torch.int64", "torch.float32"),
    ),
    "a truncated checkpoint": (truncate, ("model.safetensors", "not a readable safetensors file")),
    "no checkpoint": (lambda f: f.weights.unlink(), ("model.safetensors", "no such weights")),
    "an override of no table": (
        lambda f: f.describe('[quantization.overrides]\nitme = "int4"\n'),
        ("quantization.overrides", "'itme' matches no table"),
    ),
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


def test_inspect_shows_the_report(published: Published, sharded_infer: Command) -> None:
    done = sharded_infer("inspect", "-r", published.repository, "--report")
    assert (done.code, done.err) == (0, "")
    for words in ("clicks, rows encoded by", "300 calibration samples", "budget of memory", *ROWS):
        assert words in done.out
    done = sharded_infer("inspect", "-r", published.repository, "--report", "--json")
    assert done.json() == published.report
    # Without --report, it is the manifest as ever.
    assert "files" in sharded_infer("inspect", "-r", published.repository, "--json").json()


def test_inspect_writes_the_reports_page(
    published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    page = tmp_path / "page.html"
    assert sharded_infer("inspect", "-r", published.repository, "--html", page).code == 0
    report = report_from_fields(published.report)
    assert page.read_text() == render_quantization_page(report)
    assert page.read_text().startswith("<!DOCTYPE html>")
    nowhere = tmp_path / "none" / "page.html"
    done = sharded_infer("inspect", "-r", published.repository, "--html", nowhere)
    done.refused(nowhere, "cannot be written")


def test_a_damaged_report_is_refused_by_name(
    published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    damaged = published.copied(tmp_path)
    path = damaged.path / "report.json"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    for option in (("--report",), ("--html", tmp_path / "p")):
        done = sharded_infer("inspect", "-r", damaged.repository, *option)
        done.refused(path, "altered", "SHA-256")
    assert not (tmp_path / "p").exists()
    sharded_infer("verify", "-r", damaged.repository).refused("report.", "altered")


UNREADABLE = {
    "not JSON": (b"{", ("report.json", "not JSON")),
    "no object": (b"[]", ("report.json", "expected a JSON object")),
    "no report": (b"{}", ("report.json", "model: Field required")),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_report_that_is_none_is_refused_even_if_the_manifest_has_its_hash(
    case: str, published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    content, words = UNREADABLE[case]
    forged = published.copied(tmp_path)
    record = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    edit_manifest(forged.path, lambda manifest: manifest["files"].update({"report.json": record}))
    (forged.path / "report.json").write_bytes(content)
    sharded_infer("inspect", "-r", forged.repository, "--report").refused(*words)


def test_a_version_without_a_report_says_so(
    published: Published, tmp_path: Path, sharded_infer: Command
) -> None:
    older = published.copied(tmp_path)
    edit_manifest(older.path, lambda manifest: manifest["files"].pop("report.json"))
    (older.path / "report.json").unlink()
    sharded_infer("inspect", "-r", older.repository, "--report").refused("holds no report.json")
    assert sharded_infer("verify", "-r", older.repository).code == 0


# ---------------------------------------------------------------- other checkpoints


def save_sharded(folder: Path) -> Path:
    """Two safetensors files under an index, a table in each."""
    weights = trained()
    names = {key: f"model-0000{1 + (key == 'item')}-of-00002.safetensors" for key in weights}
    for name in set(names.values()):
        save_file({k: v for k, v in weights.items() if names[k] == name}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return index


def save_numpy(folder: Path) -> Path:
    folder = folder / "arrays"
    folder.mkdir()
    for key, weight in trained().items():
        np.save(folder / f"{key}.npy", weight.numpy())
    return folder


def save_saved(folder: Path) -> Path:
    torch.save(trained(), folder / "model.pt")
    return folder / "model.pt"


@pytest.mark.parametrize("save", [save_sharded, save_numpy, save_saved])
def test_other_checkpoints_of_the_same_weights_give_the_same_tables_and_figures(
    save: Callable[[Path], Path], files: Files, tmp_path: Path, sharded_infer: Command
) -> None:
    options = ("--calibration", files.calibration, "--json")
    expected = sharded_infer(*files.quantize("--out", files.out, *options)).json()
    other = tmp_path / "other"
    words = ("quantize", "--spec", files.spec, "--weights", save(tmp_path), "--out", other)
    found = sharded_infer(*words, *options).json()
    assert found | {"seconds": 0} == expected | {"seconds": 0}
    assert table_files(other) == table_files(files.out)


@pytest.fixture
def rec() -> Iterator[TorchRec]:
    with torchrec() as parts:
        yield parts


def save_state(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path / "checkpoint.pt")
    return path / "checkpoint.pt"


def save_distributed(model: nn.Module, path: Path) -> Path:
    checkpoint.save({"model": model.state_dict()}, checkpoint_id=path / "checkpoint")
    return path / "checkpoint"


def as_samples(batch: Batch) -> list[Sample]:
    samples: list[Sample] = [{"dense": row.tolist()} for row in batch.dense]
    ids = iter(batch.values.tolist())
    for feature, lengths in zip(batch.features, batch.lengths.tolist(), strict=True):
        for sample, length in zip(samples, lengths, strict=True):
            sample[feature] = [next(ids) for _ in range(length)]
    return samples


def check_draft(draft: str, row_format: str) -> str:
    """Corrects a draft where names and shapes of a checkpoint do not determine it."""
    for table in TABLES:
        start = draft.index(f'name = "{table.name}"')
        end = draft.find("[", draft.index("features = [", start) + len("features = ["))
        lines = draft[start:end]
        edited = lines.replace(f'["{table.name}"]', json.dumps(table.features))
        edited = edited.replace('pooling = "sum"', f'pooling = "{table.pooling.lower()}"')
        draft = draft.replace(lines, edited)
    return draft.replace('format = "int8"', f'format = "{row_format}"')


@pytest.mark.parametrize("row_format", ["int8", "fp32"])
@pytest.mark.parametrize(
    ("architecture", "save"),
    [("DLRM", save_state), ("DLRM_DCN", save_state), ("DLRM", save_distributed)],
)
def test_a_torchrec_checkpoint_is_drafted_published_and_scores_as_torchrec_does(
    architecture: str,
    save: Callable[[nn.Module, Path], Path],
    row_format: str,
    rec: TorchRec,
    tmp_path: Path,
    sharded_infer: Command,
) -> None:
    model, batch = rec.model(architecture), make_batch()
    weights, spec, repository = save(model, tmp_path), tmp_path / "model.toml", tmp_path / "r"
    drafted = sharded_infer("spec", "--from", weights, "--name", "ranker", "--out", spec)
    assert drafted.code == 0, drafted.err
    spec.write_text(check_draft(spec.read_text(), row_format))
    done = sharded_infer("publish", "--spec", spec, "--weights", weights, "-r", repository)
    assert done.code == 0, done.err
    words = ("predict", "-", "-r", repository, "--json")
    done = sharded_infer(*words, stdin=json.dumps(as_samples(batch)))
    served = np.array(done.json()["scores"]["score"])
    expected = torch.sigmoid(rec.logits(model, batch)).numpy()
    allowed = load_spec(spec).gate.max_score_diff if row_format == "int8" else 1e-5
    assert np.abs(served - expected).max() <= allowed
    # Samples differ by more: the agreement says something.
    assert np.ptp(expected) > allowed
