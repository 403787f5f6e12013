"""The groups of commands: `repo`, `cluster`, `record` and `bench`."""

import typer

from serving.commands.lazy_group import CommandEntry, command_entries, lazy_group

REPO_COMMANDS = command_entries(
    "serving.commands.repo",
    "repo_",
    {
        "list": ("repo_list", "List models with their versions, labels, sizes and ages."),
        "show": ("repo_list", "Show the versions of a model, or the contents of one."),
        "diff": ("repo_diff", "Show what changed from A to B."),
        "label": ("repo_label", "Point a label at a version, remove it, or set weights of labels."),
        "rollback": ("repo_label", "Move a label back to the version that it pointed at before."),
        "promote": (
            "repo_promote",
            "Promote a version step by step, and take it back if it is worse.",
        ),
        "gc": ("repo_upkeep", "Remove old versions that have no label and are not in use."),
        "verify": ("repo_upkeep", "Read and compare every file where it is stored."),
        "copy": ("repo_version", "Copy a version to another repository."),
        "sign": ("repo_version", "Sign a published version."),
        "compact": ("repo_version", "Publish a version with changed rows as a whole one."),
        "watch": ("repo_watch", "Show live which versions a server loads and serves."),
    },
)
CLUSTER_COMMANDS = command_entries(
    "serving.commands",
    "cluster_",
    {
        "up": ("cluster", "Start the processes of a cluster on Ray, and wait for them."),
        "status": (
            "cluster",
            "Show the processes of a cluster: machines, addresses, versions.",
        ),
        "roll": ("cluster", "Replace the processes of a cluster one after another."),
        "down": ("cluster", "End the processes of a cluster."),
        "publish": ("cluster", "Publish a model in parts, which machines of Ray make."),
    },
)
RECORD_COMMANDS = command_entries(
    "serving.commands",
    "record_",
    {
        "show": (
            "record.record_show",
            "Show a recording: requests, samples, ids, scores and labels of each version.",
        ),
        "sample": (
            "record.record_sample",
            "Print some samples as lines of JSON, as every command reads them.",
        ),
        "compare": (
            "record.record_compare",
            "Score recorded requests again, as they were sent, and compare the scores.",
        ),
        "prune": ("record.record_prune", "Remove files of hours that ended long ago."),
    },
)
BENCH_COMMANDS = command_entries(
    "serving.commands.bench",
    "bench_",
    {
        "lookup": ("bench_lookup", "Measure pooled lookups beside FBGEMM's kernel."),
        "engine": ("bench_engine", "Measure lookups and tower on one core, beside TorchRec."),
        "serve": ("bench_serve", "Measure a server under load."),
    },
)


def _group(entries: tuple[CommandEntry, ...], words: str) -> typer.Typer:
    return typer.Typer(
        cls=lazy_group(*entries), no_args_is_help=True, help=words, rich_markup_mode=None
    )


repo_app = _group(
    REPO_COMMANDS,
    "Show versions and labels, move labels, clean up a repository. A repository is a folder or a "
    "URL such as s3://bucket/prefix.",
)
cluster_app = _group(
    CLUSTER_COMMANDS,
    "Run shard hosts and fronts on several machines. A cluster.toml describes them.",
)
record_app = _group(
    RECORD_COMMANDS,
    "Show, sample, compare and remove what servers recorded. `serve --record` records.",
)
bench_app = _group(BENCH_COMMANDS, "Measure lookups, engines and servers on this machine.")
