"""Writes what every release can write: versions of format 1, and the files beside them.

    python -m tests.compatibility.plain_corpus FOLDER

Release 0.1.0 ran this file too, with those that it imports.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sharded_infer import ModelSpec, Repository, read_calibration, statistics_of
from tests.compatibility.corpus import Arrays, Corpus
from tests.compatibility.messages import keep_messages
from tests.compatibility.plain_models import (
    FORMATS,
    PRECISIONS,
    publish_formats,
    publish_operators,
    publish_precision,
    samples_of,
    spec_of,
)

CALIBRATION_SAMPLES = 12
TWO_HOSTS = """name = "two-hosts"
network_bandwidth = 1.25e9
[[devices]]
card = "cpu"
count = 2
host = 0
memory = "9KB"
[[devices]]
card = "cpu"
host = 1
memory = "9KB"
memory_bandwidth = 7e9
cache_bandwidth = 3e10
"""


def write_plain(corpus: Corpus, measured: Path | None = None) -> None:
    """Writes the plain models and files into an empty folder, and their requests.

    Args:
        measured: a topology with costs of a machine; None: this one is measured.
    """
    corpus.files.mkdir(parents=True)
    topologies = _write_topologies(corpus.files, measured)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        spec = spec_of(FORMATS, folder)
        samples = samples_of(spec, seed=20, count=CALIBRATION_SAMPLES)
        spec = replace(spec, statistics=statistics_of(spec, samples))
        (corpus.files / "formats.toml").write_text(spec.to_toml())
        _write_calibration(corpus.files, spec, samples)
        labelled = samples | {"clicked": np.arange(CALIBRATION_SAMPLES) % 2}
        for seed in (1, 2):
            publish_formats(spec, corpus.models, seed, labelled, topologies)
        corpus.keep_request("formats", samples_of(spec, seed=4))
        for precision in PRECISIONS:
            made = publish_precision(corpus.models, folder, precision)
            corpus.keep_request(made.name, samples_of(made, seed=8))
        made = publish_operators(corpus.models, folder)
        corpus.keep_request(made.name, samples_of(made, seed=12))
    labels = Repository(corpus.models)
    for label, version in (("stable", 1), ("canary", 2), ("stable", 2)):
        labels.set_label("formats", label, version)


def values_of(corpus: Corpus) -> dict[str, Any]:
    """What this release reads in the plain files and in the labels."""
    spec = Repository(corpus.models).open("formats", 1).manifest.model_spec()
    files = ("calibration.safetensors", "calibration.jsonl")
    repository = Repository(corpus.models)
    samples = read_calibration(spec, corpus.files / files[0]).model_input
    values = {
        "calibration": {name: _read(spec, corpus.files / name) for name in files},
        "statistics": {name: asdict(one) for name, one in statistics_of(spec, samples).items()},
        "labels": {m: repository.labels(m) for m in repository.models()},
        "history": {
            m: {name: list(past) for name, past in repository.label_history(m).history.items()}
            for m in repository.models()
        },
    }
    # Lists for tuples.
    as_stored: dict[str, Any] = json.loads(json.dumps(values))
    return as_stored


def _write_topologies(files: Path, measured: Path | None) -> list[Path]:
    """Costs of two hosts as people write them, and those of a machine as measured."""
    by_hand, written = files / "two-hosts.toml", files / "measured.toml"
    by_hand.write_text(TWO_HOSTS)
    if measured is not None:
        shutil.copyfile(measured, written)
        return [by_hand, written]
    words = (sys.executable, "-m", "serving.cli", "calibrate", "--ranks", "2", "--out", written)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return [by_hand, written]


def _write_calibration(files: Path, spec: ModelSpec, samples: Arrays) -> None:
    """Samples with labels, of which one is unknown, and reference scores: tensors, JSON lines."""
    generator = np.random.default_rng(21)
    count = len(samples["dense"])
    labels = generator.integers(0, 2, count).astype(np.float32)
    labels[3] = np.nan
    references = generator.standard_normal(count, np.float32)
    lines: list[dict[str, Any]] = [
        {"clicked": None if np.isnan(label) else int(label), "reference.score": reference}
        for label, reference in zip(labels.tolist(), references.tolist(), strict=True)
    ]
    for name in (*spec.sparse_inputs, *spec.dense.inputs):
        for line, cell in zip(lines, _cells(samples, name), strict=True):
            line[name] = cell
    first = spec.sparse_inputs[0]
    for line, cell in zip(lines, _cells(samples, f"{first}.weights", first), strict=True):
        line[f"{first}.weights"] = cell
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (files / "calibration.jsonl").write_text(text)
    weights = [
        samples.get(f"{name}.weights", np.ones(len(samples[name]), np.float32))
        for name in spec.sparse_inputs
    ]
    tensors = {
        "sparse.values": np.concatenate([samples[name] for name in spec.sparse_inputs]),
        "sparse.lengths": np.stack([samples[f"{name}.lengths"] for name in spec.sparse_inputs]),
        "sparse.weights": np.concatenate(weights),
        "dense.dense": samples["dense"],
        "clicked": labels,
        "reference.score": references,
    }
    save_file(tensors, files / "calibration.safetensors")


def _cells(samples: Arrays, name: str, bags: str | None = None) -> list[Any]:
    """The values of each sample: the bags of a feature or of its weights, or a dense input."""
    lengths = samples.get(f"{bags or name}.lengths")
    if lengths is None:
        return samples[name].tolist()
    parts = np.split(samples[name], np.cumsum(lengths.astype(np.int64))[:-1])
    return [part.tolist() for part in parts]


def _read(spec: ModelSpec, path: Path) -> dict[str, Any]:
    """Labels, reference scores and inputs, as plain values; an unknown label is None."""
    found = read_calibration(spec, path)
    (batch,) = found.model_input.groups
    return {
        "labels": {
            name: [None if np.isnan(label) else label for label in labels.tolist()]
            for name, labels in found.labels.items()
        },
        "references": {name: scores.tolist() for name, scores in found.references.items()},
        "values": batch.values.tolist(),
        "lengths": batch.lengths.tolist(),
        "weights": None if batch.weights is None else batch.weights.tolist(),
        "dense": [array.tolist() for array in found.model_input.dense],
    }


def main() -> None:
    """Writes the folder that the command line names."""
    corpus = Corpus(Path(sys.argv[1]))
    write_plain(corpus)
    corpus.keep_scores()
    keep_messages(corpus)
    corpus.keep_values(values_of(corpus))


if __name__ == "__main__":
    main()
