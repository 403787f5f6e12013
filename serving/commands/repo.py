"""The commands about a repository, under `repo`."""

import typer

from serving.commands.repo_copy import repo_copy_command
from serving.commands.repo_diff import repo_diff_command
from serving.commands.repo_gc import repo_gc_command
from serving.commands.repo_label import repo_label_command, repo_rollback_command
from serving.commands.repo_list import repo_list_command, repo_show_command
from serving.commands.repo_verify import repo_verify_command
from serving.commands.repo_watch import repo_watch_command

repo_app = typer.Typer(
    no_args_is_help=True,
    help="Look at a repository: versions and labels, move them, clean up. A repository is a "
    "folder or a URL such as s3://bucket/prefix.",
)
repo_app.command("list")(repo_list_command)
repo_app.command("show")(repo_show_command)
repo_app.command("diff")(repo_diff_command)
repo_app.command("label")(repo_label_command)
repo_app.command("rollback")(repo_rollback_command)
repo_app.command("gc")(repo_gc_command)
repo_app.command("verify")(repo_verify_command)
repo_app.command("copy")(repo_copy_command)
repo_app.command("watch")(repo_watch_command)
