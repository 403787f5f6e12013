"""Publishes a version with changed rows as a whole version."""

from dataclasses import asdict

from kernels.wording import counted
from serving.commands.console import print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.options.json_option import JsonOption
from serving.commands.options.version_options import SignKeyOption
from serving.commands.progress_bars import progress_bars
from serving.commands.repo.arguments import (
    LocationArgument,
    ModelVersionArgument,
    named_model_version,
)
from sharded_infer.byte_sizes import size_text
from sharded_infer.repositories.repository import Repository


def repo_compact_command(
    repository: LocationArgument,
    what: ModelVersionArgument,
    sign_key: SignKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a version with changed rows as a whole one, under the next number.

    Its tables have the bytes of a publication of all rows. It has no report on quantization.
    """
    opened = Repository(repository)
    model, version = named_model_version(opened, what)
    compact = load_by_name("sharded_infer.publishing.deltas.compaction:compact")
    with progress_bars() as progress:
        made = compact(opened, model, version, sign_keys=sign_key or (), progress=progress)
    fields = asdict(made)
    fields["path"] = fields.pop("location")
    print_result(
        {"model": model, **fields},
        f"published {model} version {made.version}: version {made.compacted} with its "
        f"{counted(made.overlays, 'file')} of changed rows as one, "
        f"{size_text(made.table_bytes)} of tables\n{made.location}",
        as_json=as_json,
    )
