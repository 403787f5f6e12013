"""Models of format 1 that every release can publish.

Release 0.1.0 ran this file: it uses only the public names of `sharded_infer` that 0.1.0 had. What a
later release adds goes into another file.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sharded_infer import ModelSpec, load_spec, publish
from tests.compatibility.towers import ExactTower, ManyOperators

Arrays = dict[str, NDArray[np.generic]]
SAMPLES = 11
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "int8")
# Two of them hold less than the tables: rows are cut.
TOPOLOGIES = ("cpu:1", "cpu:2", "cpu:8x2KB")
FORMATS = """
name = "formats"
[dense]
inputs = { dense = 3 }
[tower]
outputs = ["score", "pooled"]
[quantization]
format = "int8"
overrides = { "t_fp*" = "fp16" }
[gate]
max_score_diff = 4.0
[gate.outputs.score]
max_score_diff = 8.0
label = "clicked"
[serving]
executor = "batched"
max_batch = 64
latency_objective_ms = 25
[[tables]]
name = "t_fp32"
rows = 40
dim = 5
format = "fp32"
required = true
[[tables]]
name = "t_fp16"
rows = 41
dim = 6
[[tables]]
name = "t_bf16"
rows = 42
dim = 8
format = "bf16"
pooling = "mean"
[[tables]]
name = "t_fp8"
rows = 43
dim = 12
format = "fp8"
out_of_range = "modulo"
[[tables]]
name = "t_int8"
rows = 44
dim = 16
pooling = "mean"
padding_idx = 7
features = ["t_int8", "shared"]
[[tables]]
name = "t_int4"
rows = 45
dim = 17
format = "int4"
out_of_range = "ignore"
features = ["t_int4", "shared"]
[[tables]]
name = "t_int2"
rows = 46
dim = 18
format = "int2"
"""
# 68 columns and 64 hidden: integer products have at least 64.
PRECISION = """
name = "tower_{precision}"
[dense]
inputs = {{ dense = 4 }}
[tower]
precision = "{precision}"
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[[tables]]
name = "user"
rows = 20
dim = 32
[[tables]]
name = "item"
rows = 30
dim = 32
"""
OPERATORS = """
name = "operators"
[dense]
inputs = { dense = 3 }
[[tables]]
name = "user"
rows = 20
dim = 8
[[tables]]
name = "item"
rows = 30
dim = 12
"""


def spec_of(text: str, folder: Path) -> ModelSpec:
    """A description, read from a file as users write it."""
    path = folder / "model.toml"
    path.write_text(text)
    return load_spec(path)


def rows_of(spec: ModelSpec, seed: int) -> dict[str, nn.EmbeddingBag]:
    """Trained tables: normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    tables = {}
    for table in spec.tables:
        rows = torch.randn(table.rows, table.dim, generator=generator)
        tables[table.name] = nn.EmbeddingBag.from_pretrained(
            rows, mode=table.pooling or "sum", padding_idx=table.padding_idx
        )
    return tables


def samples_of(spec: ModelSpec, seed: int, count: int = SAMPLES) -> Arrays:
    """A request as clients send it: bags of up to 4 ids, weights for one feature, dense inputs."""
    generator = np.random.default_rng(seed)
    arrays: Arrays = {}
    rows = {f.name: f.table.rows for f in reversed(spec.features)}
    for number, name in enumerate(spec.sparse_inputs):
        lengths = generator.integers(0, 5, count)
        arrays[name] = generator.integers(0, rows[name], int(lengths.sum()))
        arrays[f"{name}.lengths"] = lengths
        if number == 0:
            arrays[f"{name}.weights"] = generator.random(len(arrays[name]), np.float32)
    for name, width in spec.dense.inputs.items():
        arrays[name] = generator.standard_normal((count, width), np.float32)
    return arrays


def publish_formats(
    spec: ModelSpec, repository: Path, seed: int, calibration: Any, topologies: Sequence[Path]
) -> None:
    """A version with a table of every row format, planned for several layouts.

    Args:
        spec: of `FORMATS`, with statistics.
        calibration: samples with labels.
        topologies: files.
    """
    publish(
        spec,
        rows_of(spec, seed),
        ExactTower(3 + spec.embedding_width, 16, seed),
        repository,
        topologies=(*TOPOLOGIES, *map(str, topologies)),
        samples=samples_of(spec, seed + 10),
        calibration=calibration,
        note="nightly",
        run_id=f"run/{seed}",
        source_revision="4f2a9c1",
    )


def publish_precision(repository: Path, folder: Path, precision: str) -> ModelSpec:
    """A version whose tower has a precision."""
    spec = spec_of(PRECISION.format(precision=precision), folder)
    tower = ExactTower(4 + spec.embedding_width, 64 if precision == "int8" else 16, seed=5)
    samples, many = samples_of(spec, seed=6), samples_of(spec, seed=6, count=200)
    publish(spec, rows_of(spec, seed=7), tower, repository, samples=samples, calibration=many)
    return spec


def publish_operators(repository: Path, folder: Path) -> ModelSpec:
    """A version whose tower calls many operators."""
    spec = spec_of(OPERATORS, folder)
    tower, samples = ManyOperators(3, (8, 12), seed=10), samples_of(spec, seed=11)
    publish(spec, rows_of(spec, seed=9), tower, repository, samples=samples)
    return spec
