"""The commands about a cluster, under `cluster`."""

import typer

from serving.commands.lazy_group import CommandEntry, lazy_group

CLUSTER_COMMANDS = (
    CommandEntry(
        "up",
        "serving.commands.cluster.cluster_run:cluster_up_command",
        "Start the processes of a cluster on Ray, and wait for them.",
    ),
    CommandEntry(
        "status",
        "serving.commands.cluster.cluster_run:cluster_status_command",
        "Show the processes of a cluster: machines, addresses, versions.",
    ),
    CommandEntry(
        "roll",
        "serving.commands.cluster.cluster_run:cluster_roll_command",
        "Replace the processes of a cluster one after another.",
    ),
    CommandEntry(
        "down",
        "serving.commands.cluster.cluster_run:cluster_down_command",
        "End the processes of a cluster.",
    ),
    CommandEntry(
        "publish",
        "serving.commands.cluster.cluster_publish:cluster_publish_command",
        "Publish a model in parts, which machines of Ray make.",
    ),
)

cluster_app = typer.Typer(
    cls=lazy_group(*CLUSTER_COMMANDS),
    no_args_is_help=True,
    help="Run shard hosts and fronts on several machines. A cluster.toml describes them.",
    rich_markup_mode=None,
)
