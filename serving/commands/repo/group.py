"""The commands about a repository, under `repo`."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

REPO_COMMANDS = (
    CommandEntry(
        "list",
        "serving.commands.repo.repo_list:repo_list_command",
        "List models with their versions, labels, sizes and ages.",
    ),
    CommandEntry(
        "show",
        "serving.commands.repo.repo_list:repo_show_command",
        "Show the versions of a model, or the contents of one.",
    ),
    CommandEntry(
        "diff",
        "serving.commands.repo.repo_diff:repo_diff_command",
        "Show what changed from A to B.",
    ),
    CommandEntry(
        "label",
        "serving.commands.repo.repo_label:repo_label_command",
        "Point a label at a version, remove it, or set weights of labels.",
    ),
    CommandEntry(
        "rollback",
        "serving.commands.repo.repo_label:repo_rollback_command",
        "Move a label back to the version that it pointed at before.",
    ),
    CommandEntry(
        "promote",
        "serving.commands.repo.repo_promote:repo_promote_command",
        "Promote a version step by step, and take it back if it is worse.",
    ),
    CommandEntry(
        "gc",
        "serving.commands.repo.repo_gc:repo_gc_command",
        "Remove old versions that have no label and are not in use.",
    ),
    CommandEntry(
        "verify",
        "serving.commands.repo.repo_verify:repo_verify_command",
        "Read and compare every file where it is stored.",
    ),
    CommandEntry(
        "copy",
        "serving.commands.repo.repo_copy:repo_copy_command",
        "Copy a version to another repository.",
    ),
    CommandEntry(
        "sign",
        "serving.commands.repo.repo_sign:repo_sign_command",
        "Sign a published version.",
    ),
    CommandEntry(
        "compact",
        "serving.commands.repo.repo_compact:repo_compact_command",
        "Publish a version with changed rows as a whole one.",
    ),
    CommandEntry(
        "watch",
        "serving.commands.repo.repo_watch:repo_watch_command",
        "Show live which versions a server loads and serves.",
    ),
)

repo_app = typer.Typer(
    cls=lazy_group(*REPO_COMMANDS),
    no_args_is_help=True,
    help="Show versions and labels, move labels, clean up a repository. A repository is a "
    "folder or a URL such as s3://bucket/prefix.",
    rich_markup_mode=None,
)
