"""A model whose rows lie by how often they are used, and a plan for a machine with a disk."""

from pathlib import Path

import numpy as np

from sharded_infer import publish
from tests.compatibility.corpus import Arrays
from tests.compatibility.plain_models import rows_of, samples_of, spec_of
from tests.compatibility.towers import ExactTower

ORDERED = """
name = "ordered"
[dense]
inputs = { dense = 2 }
[tower]
outputs = ["score", "pooled"]
[gate]
max_score_diff = 8.0
[[tables]]
name = "item"
rows = 600
dim = 8
format = "int8"
out_of_range = "ignore"
features = ["item", "seen"]
[[tables]]
name = "user"
rows = 61
dim = 9
format = "int4"
pooling = "mean"
padding_idx = 3
"""
WITH_A_DISK = """name = "with-a-disk"
[[devices]]
card = "cpu"
count = 2
memory = "9KB"
[disk]
reads_per_second = 52000
read_seconds = 8.5e-5
"""


def publish_ordered(repository: Path, folder: Path, files: Path) -> Arrays:
    """A version; returns a request."""
    (files / "with-a-disk.toml").write_text(WITH_A_DISK)
    spec = spec_of(ORDERED, folder)
    publish(
        spec,
        rows_of(spec, seed=71),
        ExactTower(spec.embedding_width + sum(spec.dense.inputs.values()), 16, 72),
        repository,
        topologies=("cpu:1", str(files / "with-a-disk.toml")),
        samples=samples_of(spec, seed=73),
        order_rows="frequency",
        # Each of 600 numbers once.
        frequencies={"item": 7 * np.arange(600) % 601},
    )
    return samples_of(spec, seed=74)
