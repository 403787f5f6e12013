"""Verifies a version."""

from kernels.wording import counted
from serving.commands.console import print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.options.json_option import JsonOption
from serving.commands.options.version_options import (
    ModelOption,
    RepositoryOption,
    TrustedKeyOption,
    VersionOption,
)
from serving.commands.progress_bars import progress_bars
from serving.commands.version_summary import NO_CHECKSUM
from serving.commands.versions import fetched_artifact, key_ids, only_model
from sharded_infer.byte_sizes import size_text
from sharded_infer.repositories.repository import Repository


def verify_command(
    repository: RepositoryOption,
    model: ModelOption = None,
    version: VersionOption = None,
    trusted_key: TrustedKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every file and plan, then score the golden requests.

    Sizes and hashes are compared with the manifest, scores with the fp32 model's. With
    --trusted-key, the manifest's signature is checked first.
    """
    published = Repository(repository, trusted_keys=trusted_key or ())
    name = only_model(published, model)
    with progress_bars() as progress:
        read = published.verify(name, version, progress)
        with fetched_artifact(published, name, version, progress) as artifact:
            manifest = artifact.manifest
            differences = load_by_name("serving.commands.opened_version:golden_differences")(
                artifact
            )
    fields = {
        "model": manifest.model,
        "version": manifest.version,
        "files": len(manifest.files),
        "bytes": read,
        "manifest_sha256": manifest.sha256,
        "signed_by": key_ids(published, name, manifest.version),
        "max_score_diff": max(differences.values()),
        "plans": list(differences),
    }
    print_result(
        fields,
        f"{published.where(manifest.model, manifest.version)}: "
        f"{counted(len(manifest.files), 'file')}, "
        f"{size_text(read)}, all as the manifest says; golden requests within "
        f"{max(differences.values()):.2g} of fp32"
        f"{'' if manifest.sha256 else f'; the manifest is {NO_CHECKSUM}'}"
        f"{'; signed by a trusted key' if trusted_key else ''}",
        as_json=as_json,
    )
