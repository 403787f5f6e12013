"""Verifies a version."""

from serving.commands.console import OUT, print_json
from serving.commands.versions import (
    JsonOption,
    ModelOption,
    RepositoryOption,
    VersionOption,
    find_artifact,
    open_published,
)
from serving.progress import progress_bars
from sharded_infer.artifact import verify_files
from sharded_infer.model import check_golden
from sharded_infer.sizes import size_text


def verify_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every file's size and hash, then every plan, then score the golden requests."""
    artifact = find_artifact(repository, model, version)
    with progress_bars() as progress:
        read = verify_files(artifact, progress)
    differences = {
        name: check_golden(open_published(artifact, name)) for name in artifact.manifest.plans
    }
    fields = {
        "model": artifact.manifest.model,
        "version": artifact.manifest.version,
        "files": len(artifact.manifest.files),
        "bytes": read,
        "max_score_diff": max(differences.values()),
        "plans": list(differences),
    }
    if as_json:
        print_json(fields)
        return
    OUT.print(
        f"{artifact.path}: {len(artifact.manifest.files)} files, {size_text(read)}, all as the "
        f"manifest says; golden requests within {max(differences.values()):.2g} of fp32",
        highlight=False,
        soft_wrap=True,
    )
