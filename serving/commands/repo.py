"""The commands about a repository, under `repo`."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

REPO_COMMANDS = (
    CommandEntry(
        "list",
        "serving.commands.repo_list:repo_list_command",
        "List models with their versions, labels, sizes and ages.",
    ),
    CommandEntry(
        "show",
        "serving.commands.repo_list:repo_show_command",
        "Show the versions of a model, or what one of them holds.",
    ),
    CommandEntry(
        "diff",
        "serving.commands.repo_diff:repo_diff_command",
        "Show what changed from A to B.",
    ),
    CommandEntry(
        "label",
        "serving.commands.repo_label:repo_label_command",
        "Point a label at a version, or remove it.",
    ),
    CommandEntry(
        "rollback",
        "serving.commands.repo_label:repo_rollback_command",
        "Move a label back to the version that it pointed at before.",
    ),
    CommandEntry(
        "gc",
        "serving.commands.repo_gc:repo_gc_command",
        "Remove old versions that no label names and that nobody uses.",
    ),
    CommandEntry(
        "verify",
        "serving.commands.repo_verify:repo_verify_command",
        "Read every file where it is stored, and compare it.",
    ),
    CommandEntry(
        "copy",
        "serving.commands.repo_copy:repo_copy_command",
        "Copy a version to another repository.",
    ),
    CommandEntry(
        "watch",
        "serving.commands.repo_watch:repo_watch_command",
        "Follow what a server makes of its repository.",
    ),
)

repo_app = typer.Typer(
    cls=lazy_group(*REPO_COMMANDS),
    no_args_is_help=True,
    help="Look at a repository: versions and labels, move them, clean up. A repository is a "
    "folder or a URL such as s3://bucket/prefix.",
    rich_markup_mode=None,
)
