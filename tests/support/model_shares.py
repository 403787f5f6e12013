"""Shares of published versions."""

from pathlib import Path
from typing import Any

from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.engines.model_share import ModelShare


def open_share(
    path: Path | str, host: int, *, topology: str | None = None, **options: Any
) -> ModelShare:
    artifact = open_artifact(Path(path))
    return ModelShare(artifact, artifact.plan(topology), host, **options)
