"""A checkpoint of several chunks, for publishing in parts by the command."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sharded_infer.files.toml_file import toml_text
from sharded_infer.repositories.repository import Repository
from sharded_infer.zoo.dlrm import DLRM

ROWS = {"ads": 70_000, "user": 50_000, "flag": 1, "shop": 40_001}
_FORMATS = {"ads": "int8", "user": "int4", "flag": "int8", "shop": "bf16"}
_LAYERS: dict[str, list[int]] = {"bottom": [16, 32], "top": [16, 1]}


def write_checkpoint(folder: Path) -> tuple[object, ...]:
    tables = [{"name": n, "rows": r, "dim": 32, "format": _FORMATS[n]} for n, r in ROWS.items()]
    described = {
        "name": "ranker",
        "tables": tables,
        "dense": {"inputs": {"dense": 4}},
        "tower": {"architecture": "dlrm", **_LAYERS},
    }
    spec, stored = folder / "model.toml", folder / "weights.safetensors"
    spec.write_text(toml_text(described))
    generator = torch.Generator().manual_seed(1)
    weights = {
        f"{name}.weight": torch.randn(rows, 32, generator=generator) / 40
        for name, rows in ROWS.items()
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        tower = DLRM(dense_width=4, feature_dims=[32] * len(ROWS), **_LAYERS)
    weights |= {f"tower.{name}": value.detach() for name, value in tower.state_dict().items()}
    save_file(weights, stored)
    return ("--spec", spec, "--weights", stored)


def manifest_of(repository: Repository, version: int) -> dict[str, Any]:
    """Manifest fields that are equal for two versions of equal files."""
    path = repository.fetch("ranker", version) / "manifest.json"
    fields: dict[str, Any] = json.loads(path.read_text())
    return {k: v for k, v in fields.items() if k not in ("created_at", "version", "sha256")}
